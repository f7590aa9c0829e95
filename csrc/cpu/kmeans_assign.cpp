#include "cpu/kmeans_points.h"
#include "cpu/table.h"

namespace sopr::SOPR_LEVEL {

void kmeans_assign(const KMeansAssign& p, int threads) {
    struct Memory {
        float *chunk, *centroids;
        Memory(Arena& arena, const KMeansAssign& p)
            : chunk(arena.take(kChunk * p.width)), centroids(arena.take(p.clusters * p.width)) {}
    };
    Arena measure;
    Memory(measure, p);
    const WorkerMemory scratch(measure.bytes(), threads);
    const auto memory_of = [&](int worker) {
        Arena arena = scratch.arena(worker);
        return Memory(arena, p);
    };

    for_problems(p.problems, threads, [&](int64_t b, int worker, int inner_threads) {
        const float* points = p.points + b * p.count * p.width;
        const float* raw_centroids = p.centroids + b * p.clusters * p.width;
        const float scale = scale_of(__builtin_fmaxf(largest_magnitude(points, p.count * p.width),
                                                     largest_magnitude(raw_centroids, p.clusters * p.width)));
        float* centroids = memory_of(worker).centroids;
        for (int64_t i = 0; i < p.clusters * p.width; ++i) centroids[i] = raw_centroids[i] * scale;

        parallel_for(chunks_of(p.count), inner_threads, [&](int64_t chunk, int inner_worker) {
            const int64_t begin = chunk * kChunk, rows = min(p.count - begin, kChunk);
            float* packed = memory_of(worker + inner_worker).chunk;
            pack(points + begin * p.width, rows, p.width, scale, packed);
            Work work;
            for (int64_t row = 0; row < rows && !work.cancelled_after(kLanes * p.clusters * p.width); row += kLanes) {
                const Nearest nearest = nearest_of(packed + row * p.width, centroids, p.clusters, p.width);
                const int64_t first = b * p.count + begin + row;
                for (int64_t lane = 0; lane < kLanes && row + lane < rows; ++lane) {
                    p.labels[first + lane] = nearest.label[lane];
                    p.distances[first + lane] = nearest.squared[lane] / scale / scale;
                }
            }
        });
    });
}

}  // namespace sopr::SOPR_LEVEL
