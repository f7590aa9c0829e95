#include "cpu/arena.h"
#include "cpu/dropout_draws.h"
#include "cpu/kernel_table.h"
#include "cpu/pool.h"

namespace sopr::SOPR_LEVEL {

void segment_dropout(const SegmentDropout& p, int threads) {
    const int64_t pitch = draws_pitch(p.width);
    int64_t longest = 0;
    for (int64_t g = 0; g < p.segments; ++g) longest = max(longest, p.offsets[g + 1] - p.offsets[g]);
    Arena measure;
    measure.take<uint16_t>(longest * pitch);
    const WorkerMemory scratch(measure.bytes(), int(min(threads, p.segments)));
    parallel_for(p.segments, threads, [&](int64_t g, int worker) {
        const DropoutSite site(p.dropout, g);
        const int64_t begin = p.offsets[g], end = p.offsets[g + 1];
        uint16_t* draws = scratch.arena(worker).take<uint16_t>(longest * pitch);
        draw_rows(site, end - begin, p.width, draws);
        for (int64_t t = begin; t < end; ++t, draws += pitch) {
            const float* x = p.x + t * p.width;
            float* out = p.out + t * p.width;
            int64_t c = 0;
            for (; c + kLanes <= p.width; c += kLanes)
                store(out + c, load(x + c) * keep(broadcast(site.scale), load_draws(draws + c), site.threshold));
            for (; c < p.width; ++c) out[c] = x[c] * (draws[c] < site.threshold ? 0.0f : site.scale);
        }
    });
}

}  // namespace sopr::SOPR_LEVEL
