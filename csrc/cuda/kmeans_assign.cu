#include "cuda/kernels_cuda.h"
#include "cuda/kmeans_block.h"

namespace sopr::cuda {
namespace {

template <int kDepth>
__global__ void __launch_bounds__(kProblemThreads) assign_kernel(KMeansAssign p) {
    __shared__ float tile[kGroup * kDepth];
    const int64_t b = blockIdx.x;
    const float* points = p.points + b * p.count * p.width;
    const float* centroids = p.centroids + b * p.clusters * p.width;
    const float largest = largest_magnitude(points, p.count * p.width);
    const float scale = scale_of(fmaxf(largest, largest_magnitude(centroids, p.clusters * p.width)));
    Comparison<kDepth> comparison;
    for (int64_t first = 0; first < p.count; first += kProblemThreads) {
        const int64_t row = first + threadIdx.x;
        float least;
        int32_t label;
        comparison.nearest(row < p.count ? points + row * p.width : nullptr, scale, centroids, scale, p.clusters,
                           p.width, tile, least, label);
        if (row >= p.count) continue;
        p.labels[b * p.count + row] = label;
        p.distances[b * p.count + row] = least / scale / scale;
    }
}

}  // namespace

void kmeans_assign(const KMeansAssign& p, cudaStream_t stream) {
    if (p.problems == 0 || p.count == 0) return;
    const auto kernel = by_width(p.width, [](auto depth) { return &assign_kernel<decltype(depth)::value>; });
    launch("kmeans_assign", kernel, p.problems, 1, kProblemThreads, stream, p);
}

}  // namespace sopr::cuda
