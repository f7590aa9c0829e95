#include "cuda/kernels_cuda.h"
#include "cuda/kmeans_points.h"

namespace sopr::cuda {
namespace {

__device__ float* held_centroids() { return reinterpret_cast<float*>(dynamic_shared() + Team::kBytes); }

struct Assign {
    Points points;
    Centroids all;  // held, or else in memory
    int64_t clusters;
    float* distances;  // (N)
    int32_t* labels;   // (N)

    template <int kFours>
    __device__ __noinline__ void run() const {
        const Centroids centroids = kFours ? Centroids{held_centroids(), all.stride, 1} : all;
        for (int64_t group = warp_of_thread(); group < points.groups(); group += kProblemWarps) {
            const int64_t row = points.row_of(group);
            const TwoPoints<kFours> two(points, group, row);
            Nearest nearest[2];
            for (int64_t base = 0; base < clusters; base += kListed)
                compare_listed(two, centroids, base, all_listed(base, clusters), words_of(base, clusters), nearest);
            const Nearest own = nearest_of_halves(nearest);
            if (row < 0) continue;
            labels[row] = own.label;
            distances[row] = own.squared / points.scale / points.scale;
        }
    }
};

__global__ void __launch_bounds__(kProblemThreads) assign_kernel(KMeansAssign p, KMeansPlan plan) {
    Team team(dynamic_shared());
    const int64_t b = team.problem(), first = team.rank * plan.share, width = p.width;
    const float* raw = p.points + b * p.count * width;
    const float* centroids = p.centroids + b * p.clusters * width;
    const float largest = largest_magnitude(team, raw, p.count * width);
    const float scale = scale_of(fmaxf(largest, largest_magnitude(team, centroids, p.clusters * width)));
    if (plan.holds_centroids) {
        for (int64_t i = threadIdx.x; i < p.clusters * width; i += kProblemThreads)
            held_centroids()[i / width * plan.stride + i % width] = centroids[i] * scale;
        __syncthreads();
    }
    const int64_t end = first + plan.share < p.count ? first + plan.share : p.count;
    Assign assign = {{raw, -1, nullptr, first, end, width, scale},
                     {centroids, width, scale},
                     p.clusters,
                     p.distances + b * p.count,
                     p.labels + b * p.count};
    if (plan.holds_centroids) assign.all = {held_centroids(), plan.stride, 1};
    if (plan.holds_centroids)
        by_width(width, assign);
    else
        assign.run<0>();
    team.wait();  // others may still read this block's part of the scale
}

}  // namespace

void kmeans_assign(const KMeansAssign& p, cudaStream_t stream) {
    if (p.problems == 0 || p.count == 0) return;
    const KMeansShape shape = {p.problems, p.count, p.clusters, p.width, Team::kBytes, false};
    const KMeansPlan plan = plan_on_device("kmeans_assign", assign_kernel, shape);
    launch_in_clusters("kmeans_assign", assign_kernel, p.problems * plan.blocks, 1, plan.blocks, kProblemThreads,
                       plan.shared_bytes, stream, p, plan);
}

}  // namespace sopr::cuda
