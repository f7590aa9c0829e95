#include "cpu/dropout_row.h"
#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "cpu/table.h"

namespace sopr::SOPR_LEVEL {

void segment_dropout(const SegmentDropout& p, int threads) {
    const auto row_of = [&](Arrays memory) { return memory.take<float>(size_t(p.width)); };
    const Scratch scratch((size_t(p.width) * sizeof(float) + 63) / 64 * 64, threads);
    parallel_for(p.segments, threads, [&](int64_t g, int worker) {
        float* multipliers = row_of(scratch.piece(worker));
        const int64_t begin = p.offsets[g], end = p.offsets[g + 1];
        for (int64_t t = begin; t < end; ++t) {
            dropout_row(p.dropout, g, t - begin, 0, p.width, multipliers);
            for (int64_t e = 0; e < p.width; ++e) p.out[t * p.width + e] = p.x[t * p.width + e] * multipliers[e];
        }
    });
}

}  // namespace sopr::SOPR_LEVEL
