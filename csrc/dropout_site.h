// One dropout site of one segment and head: the key and the fixed counter words of philox.h.
#pragma once

#include "kernels.h"
#include "philox.h"

namespace sopr {

struct DropoutSite {
    uint32_t seed = 0, step = 0, segment = 0, place = 0;
    uint32_t threshold = 0;  // 0: nothing is dropped
    float scale = 1.0f;

    SOPR_INLINE DropoutSite(const Dropout& d, int64_t index, int64_t head = 0) {
        const uint32_t limit = dropout_threshold(d.probability);
        if (!d.rng || !limit) return;
        seed = uint32_t(d.rng[0]);
        step = uint32_t(d.rng[1]);
        segment = uint32_t(d.segment_base + index);
        place = philox_place(d.level, d.layer, d.site, uint32_t(head));
        threshold = limit;
        scale = dropout_scale(d.probability);
    }

    // The eight random numbers of columns 8 * block : 8 * block + 8 in a row.
    SOPR_INLINE Philox4 bits(int64_t row, int64_t block) const {
        return philox(seed, step, uint32_t(block), uint32_t(row), segment, place);
    }
};

}  // namespace sopr
