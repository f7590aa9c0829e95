// Which values a site of one segment drops: the draws of philox.h, one at a time.
#pragma once

#include "kernels.h"
#include "philox.h"

namespace sopr::cuda {

struct Drops {
    uint32_t seed = 0, step = 0, segment = 0, place = 0, threshold = 0;
    float scale = 1.0f;

    SOPR_INLINE Drops(const Dropout& d, int64_t number, int64_t head) {
        if (!d.rng || d.probability == 0) return;
        seed = uint32_t(d.rng[0]);
        step = uint32_t(d.rng[1]);
        segment = uint32_t(d.segment_base + number);
        place = philox_place(d.level, d.layer, d.site, uint32_t(head));
        threshold = dropout_threshold(d.probability);
        scale = dropout_scale(d.probability);
    }

    // The draws of the columns 8 * block : 8 * block + 8 of a row.
    SOPR_INLINE Philox4 draws(int64_t row, int64_t block) const {
        return philox(seed, step, uint32_t(block), uint32_t(row), segment, place);
    }
    SOPR_INLINE bool keeps(int64_t row, int64_t column) const {
        if (threshold == 0) return true;
        const Philox4 bits = draws(row, column / 8);
        const uint32_t low = column & 2 ? bits.word[1] : bits.word[0], high = column & 2 ? bits.word[3] : bits.word[2];
        const uint32_t word = column & 4 ? high : low;  // an index into bits would put it into memory
        return (column & 1 ? word >> 16 : word & 0xFFFFu) >= threshold;
    }
};

}  // namespace sopr::cuda
