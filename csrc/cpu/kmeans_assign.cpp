#include "cpu/kmeans_points.h"
#include "cpu/table.h"

namespace sopr::SOPR_LEVEL {

void kmeans_assign(const KMeansAssign& p, int threads) {
    const auto chunk_of = [&](Arrays memory) { return memory.take<float>(kChunk * p.width); };
    const auto centroids_of = [&](Arrays memory) {
        memory.take<float>(kChunk * p.width);
        return memory.take<float>(p.clusters * p.width);
    };
    const WorkerMemory scratch((kChunk + p.clusters) * p.width * sizeof(float), threads);

    for_problems(p.problems, threads, [&](int64_t b, int worker, int inner_threads) {
        const float* points = p.points + b * p.count * p.width;
        const float* given = p.centroids + b * p.clusters * p.width;
        const float scale = scale_of(__builtin_fmaxf(largest_magnitude(points, p.count * p.width),
                                                     largest_magnitude(given, p.clusters * p.width)));
        float* centroids = centroids_of(scratch.piece(worker));
        for (int64_t i = 0; i < p.clusters * p.width; ++i) centroids[i] = given[i] * scale;

        parallel_for(chunks_of(p.count), inner_threads, [&](int64_t chunk, int inner_worker) {
            const int64_t begin = chunk * kChunk, rows = min(p.count - begin, kChunk);
            float* packed = chunk_of(scratch.piece(worker + inner_worker));
            pack(points + begin * p.width, rows, p.width, scale, packed);
            for (int64_t row = 0; row < rows; row += kLanes) {
                const Nearest nearest = nearest_of(packed + row * p.width, centroids, p.clusters, p.width);
                const int64_t at = b * p.count + begin + row;
                for (int64_t lane = 0; lane < kLanes && row + lane < rows; ++lane) {
                    p.labels[at + lane] = nearest.label[lane];
                    p.distances[at + lane] = nearest.squared[lane] / scale / scale;
                }
            }
        });
    });
}

}  // namespace sopr::SOPR_LEVEL
