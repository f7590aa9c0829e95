#include "cpu/kernel_table.h"
#include "cpu/pool.h"
#include "cpu/sum_rows.h"

namespace sopr::SOPR_LEVEL {

void segment_mean(const SegmentMean& p, int threads) {
    parallel_for(p.segments, threads, [&](int64_t g, int) {
        const int64_t begin = p.offsets[g], end = p.offsets[g + 1];
        mean_rows(end - begin, p.width, p.width, p.x + begin * p.width, p.out + g * p.width);
    });
}

void segment_mean_backward(const SegmentMeanBackward& p, int threads) {
    parallel_for(p.segments, threads, [&](int64_t g, int) {
        const int64_t begin = p.offsets[g], end = p.offsets[g + 1];
        const float weight = 1.0f / float(end - begin);
        const float* grad = p.grad_out + g * p.width;
        for (int64_t t = begin; t < end; ++t)
            for (int64_t e = 0; e < p.width; ++e) p.grad_x[t * p.width + e] = grad[e] * weight;
    });
}

}  // namespace sopr::SOPR_LEVEL
