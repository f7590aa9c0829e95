#include "cpu/draws.h"
#include "cpu/pool.h"
#include "cpu/table.h"
#include "cpu/worker_memory.h"

namespace sopr::SOPR_LEVEL {

void segment_dropout(const SegmentDropout& p, int threads) {
    const Dropout& d = p.dropout;
    const uint32_t threshold = dropout_threshold(d.probability);
    const float scale = dropout_scale(d.probability);
    const int64_t pitch = draws_row(p.width);
    int64_t longest = 0;
    for (int64_t g = 0; g < p.segments; ++g) {
        const int64_t length = p.offsets[g + 1] - p.offsets[g];
        longest = length > longest ? length : longest;
    }
    Arrays measure(0);
    measure.take<uint16_t>(longest * pitch);
    const WorkerMemory scratch(measure.bytes(), threads);
    parallel_for(p.segments, threads, [&](int64_t g, int worker) {
        const Drops drops{uint32_t(d.rng[0]),
                          uint32_t(d.rng[1]),
                          uint32_t(d.segment_base + g),
                          philox_place(d.level, d.layer, d.site, 0),
                          threshold,
                          scale};
        const int64_t begin = p.offsets[g], end = p.offsets[g + 1];
        uint16_t* draws = scratch.piece(worker).take<uint16_t>(longest * pitch);
        drops.draw_rows(end - begin, p.width, draws);
        for (int64_t t = begin; t < end; ++t, draws += pitch) {
            const float* x = p.x + t * p.width;
            float* out = p.out + t * p.width;
            int64_t c = 0;
            for (; c + kLanes <= p.width; c += kLanes)
                store(out + c, load(x + c) * keep(broadcast(scale), load_draws(draws + c), threshold));
            for (; c < p.width; ++c) out[c] = x[c] * (draws[c] < threshold ? 0.0f : scale);
        }
    });
}

}  // namespace sopr::SOPR_LEVEL
