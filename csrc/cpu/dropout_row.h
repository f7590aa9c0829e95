// One row of dropout's multipliers, as philox.h draws them.
#pragma once

#include "kernels.h"
#include "philox.h"

namespace sopr::SOPR_LEVEL {

inline bool drops(const Dropout& dropout) { return dropout.rng && dropout.probability > 0; }

inline void dropout_row(const Dropout& dropout, int64_t segment, int64_t row, int64_t head, int64_t columns,
                        float* multipliers) {
    const uint32_t threshold = dropout_threshold(dropout.probability);
    const float scale = dropout_scale(dropout.probability);
    const uint32_t place = philox_place(dropout.level, dropout.layer, dropout.site, uint32_t(head));
    for (int64_t block = 0; block * 8 < columns; ++block) {
        const Philox4 bits = philox(uint32_t(dropout.rng[0]), uint32_t(dropout.rng[1]), uint32_t(block), uint32_t(row),
                                    uint32_t(dropout.segment_base + segment), place);
        for (int64_t c = block * 8; c < columns && c < block * 8 + 8; ++c)
            multipliers[c] = philox_draw(bits, uint32_t(c)) < threshold ? 0.0f : scale;
    }
}

}  // namespace sopr::SOPR_LEVEL
