// Lloyd's algorithm, one block per problem, with the steps of csrc/cpu/kmeans.cpp. Points that change their cluster
// update sums of coordinates with integer atomics, so sums are order-independent.
#include "cuda/kernels_cuda.h"
#include "cuda/kmeans_block.h"

namespace sopr::cuda {
namespace {

struct Lloyd {
    int64_t count, width, clusters;
    const float* points;  // (N, D), not scaled
    float* centroids;     // (K, D), scaled
    int32_t* labels;      // (N)
    float* squared;       // (N), to the centroid of the label
    int64_t* sums;        // (K, D)
    int64_t* sizes;       // (K)
    float* to_integer;    // (D), powers of two that turn columns into integers
    float scale;

    __device__ Lloyd(const KMeans& p, const KMeansMemory& memory, int64_t b)
        : count(p.count),
          width(p.width),
          clusters(p.clusters),
          points(p.points + b * count * width),
          centroids(p.centroids + b * clusters * width),
          labels(p.labels + b * count),
          squared(memory.squared + b * count),
          sums(memory.sums + b * clusters * width),
          sizes(memory.sizes + b * clusters),
          to_integer(memory.to_integer + b * width) {
        float largest = largest_magnitude(centroids, clusters * width);
        for (int64_t d = 0; d < width; ++d) {
            const float magnitude = largest_magnitude(points + d, count, width);
            if (threadIdx.x == d % kProblemThreads) to_integer[d] = magnitude;
            largest = fmaxf(largest, magnitude);
        }
        scale = scale_of(largest);
        for (int64_t d = threadIdx.x; d < width; d += kProblemThreads)
            to_integer[d] = integer_scale_of(to_integer[d] * scale, count);
        for (int64_t i = threadIdx.x; i < clusters * width; i += kProblemThreads) {
            centroids[i] *= scale;
            sums[i] = 0;
        }
        for (int64_t k = threadIdx.x; k < clusters; k += kProblemThreads) sizes[k] = 0;
        for (int64_t row = threadIdx.x; row < count; row += kProblemThreads) labels[row] = -1;
        __syncthreads();
    }

    __device__ static void add(int64_t* to, int64_t value) {
        atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
    }

    __device__ void relabel(int64_t row, int32_t to) const {
        const int64_t from = labels[row];
        labels[row] = to;
        for (int64_t d = 0; d < width; ++d) {
            const int64_t x = as_integer(points[row * width + d], scale, to_integer[d]);
            add(sums + to * width + d, x);
            if (from >= 0) add(sums + from * width + d, -x);
        }
        add(sizes + to, 1);
        if (from >= 0) add(sizes + from, -1);
    }

    // Label every point with its nearest centroid; returns how many labels changed.
    template <int kDepth>
    __device__ __noinline__ int64_t assign() const {
        __shared__ float tile[kGroup * kDepth];
        int64_t changed = 0;
        Comparison<kDepth> comparison;
        for (int64_t first = 0; first < count; first += kProblemThreads) {
            const int64_t row = first + threadIdx.x;
            float least;
            int32_t label;
            comparison.nearest(row < count ? points + row * width : nullptr, scale, centroids, 1.0f, clusters, width,
                               tile, least, label);
            if (row >= count) continue;
            squared[row] = least;
            if (label == labels[row]) continue;
            relabel(row, label);
            ++changed;
        }
        return block_sum(changed);
    }

    __device__ int64_t first_empty() const {
        int64_t first = clusters;
        for (int64_t k = threadIdx.x; k < clusters; k += kProblemThreads)
            if (sizes[k] == 0 && k < first) first = k;
        return block_reduce(first, [](int64_t a, int64_t b) { return a < b ? a : b; });
    }

    // The row with the largest finite distance, ties to the first; -1 if every point lies on a centroid.
    __device__ int64_t farthest() const {
        unsigned long long key = 0;  // bits of non-negative floats are ordered like the floats
        for (int64_t row = threadIdx.x; row < count; row += kProblemThreads) {
            if (!(squared[row] < INFINITY)) continue;
            const unsigned long long bits = __float_as_uint(squared[row]);
            const unsigned long long row_key = bits << 32 | (0xFFFFFFFFu - uint32_t(row));
            if (row_key > key) key = row_key;
        }
        using Key = unsigned long long;
        key = block_reduce(key, [](Key a, Key b) { return a > b ? a : b; });
        return key >> 32 ? int64_t(0xFFFFFFFFu - uint32_t(key)) : -1;
    }

    // Move the centroid of every empty cluster to the farthest point and relabel the points that are nearest to it;
    // returns whether there was one. Ignores points that are not finite, since they would make this loop endless.
    __device__ __noinline__ bool fill_empty() const {
        for (bool filled = false;; filled = true) {
            const int64_t k = first_empty(), chosen = farthest();
            if (k == clusters || chosen < 0) return filled;
            float* centroid = centroids + k * width;
            for (int64_t d = threadIdx.x; d < width; d += kProblemThreads)
                centroid[d] = points[chosen * width + d] * scale;
            __syncthreads();
            for (int64_t row = threadIdx.x; row < count; row += kProblemThreads) {
                const float distance = squared_distance(points + row * width, centroid, 1.0f, scale, width);
                if (!(distance <= squared[row]) || (distance == squared[row] && labels[row] < k)) continue;
                relabel(row, int32_t(k));
                squared[row] = distance;
            }
            __syncthreads();
        }
    }

    // Move every centroid to the mean of its points; returns the sum of squared moves.
    __device__ double move_centroids() const {
        double moved = 0;
        for (int64_t i = threadIdx.x; i < clusters * width; i += kProblemThreads) {
            const int64_t size = sizes[i / width];
            if (size == 0) continue;
            const float mean = float(double(sums[i]) / double(size) / double(to_integer[i % width]));
            const double move = double(mean) - double(centroids[i]);
            moved += move * move;
            centroids[i] = mean;
        }
        return block_sum(moved);
    }

    // Mean variance of the columns, by which scikit-learn scales its tolerance too.
    __device__ double mean_variance() const {
        double variance = 0;
        for (int64_t d = 0; d < width; ++d) {
            double mean = 0;
            for (int64_t k = threadIdx.x; k < clusters; k += kProblemThreads) mean += double(sums[k * width + d]);
            mean = block_sum(mean) / (double(count) * double(to_integer[d]));
            for (int64_t row = threadIdx.x; row < count; row += kProblemThreads) {
                const double off = double(points[row * width + d] * scale) - mean;
                variance += off * off;
            }
        }
        return block_sum(variance) / double(count) / double(width);
    }

    template <int kDepth>
    __device__ int32_t solve(int64_t steps, double tolerance) const {
        double allowed = 0;
        int32_t done = 0;
        while (done < steps) {
            ++done;
            const int64_t changed = assign<kDepth>();
            if (!fill_empty() && changed == 0) return done;
            if (done == 1 && tolerance > 0) allowed = tolerance * mean_variance();
            if (move_centroids() <= allowed) break;
        }
        assign<kDepth>();
        fill_empty();
        return done;
    }

    __device__ double inertia() const {
        double sum = 0;
        for (int64_t row = threadIdx.x; row < count; row += kProblemThreads) sum += double(squared[row]);
        return block_sum(sum) / double(scale) / double(scale);
    }
};

template <int kDepth>
__global__ void __launch_bounds__(kProblemThreads) lloyd_kernel(KMeans p, KMeansMemory memory) {
    const Lloyd lloyd(p, memory, blockIdx.x);
    const int32_t done = lloyd.solve<kDepth>(p.steps, p.tolerance);
    const double inertia = lloyd.inertia();
    for (int64_t i = threadIdx.x; i < p.clusters * p.width; i += kProblemThreads) lloyd.centroids[i] /= lloyd.scale;
    if (threadIdx.x != 0) return;
    p.steps_done[blockIdx.x] = done;
    p.inertia[blockIdx.x] = inertia;
}

}  // namespace

void kmeans(const KMeans& p, const KMeansMemory& memory, cudaStream_t stream) {
    if (p.problems == 0) return;
    const auto kernel = by_width(p.width, [](auto depth) { return &lloyd_kernel<decltype(depth)::value>; });
    launch("kmeans", kernel, p.problems, 1, kProblemThreads, stream, p, memory);
    sort_by_cluster({p.labels, p.rows, p.offsets, p.problems, p.count, p.clusters}, stream);
}

}  // namespace sopr::cuda
