// Shared by the k-means kernels. One block owns one problem, so block barriers suffice and problems stop independently.
//
// Distances sum squared differences in the order of the columns with fused multiply-adds, as csrc/cpu does.
#pragma once

#include "cuda/launch.h"
#include "kernels.h"
#include "kmeans_numbers.h"

namespace sopr::cuda {

constexpr int kProblemThreads = 512, kProblemWarps = kProblemThreads / kWarpSize;
constexpr int kGroup = 16;  // centroids that a point is compared with at a time

// Combine the values of all threads in a fixed order. Includes a barrier.
template <class T, class Combine>
__device__ T block_reduce(T value, const Combine& combine) {
    __shared__ T parts[kProblemWarps];
    for (int step = kWarpSize / 2; step > 0; step /= 2)
        value = combine(value, __shfl_xor_sync(kWholeWarp, value, step));
    __syncthreads();
    if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = value;
    __syncthreads();
    value = parts[0];
    for (int warp = 1; warp < kProblemWarps; ++warp) value = combine(value, parts[warp]);
    return value;
}

template <class T>
__device__ T block_sum(T value) {
    return block_reduce(value, [](T a, T b) { return a + b; });
}

// The largest magnitude of `count` numbers, `stride` apart.
__device__ inline float largest_magnitude(const float* x, int64_t count, int64_t stride = 1) {
    float largest = 0;
    for (int64_t i = threadIdx.x; i < count; i += kProblemThreads) largest = fmaxf(largest, fabsf(x[i * stride]));
    return block_reduce(largest, [](float a, float b) { return fmaxf(a, b); });
}

__device__ inline float squared_distance(const float* point, const float* centre, float centre_scale, float scale,
                                         int64_t width) {
    float squared = 0;
    for (int64_t d = 0; d < width; ++d) {
        const float difference = point[d] * scale - centre[d] * centre_scale;
        squared = fmaf(difference, difference, squared);
    }
    return squared;
}

// One row per thread, compared with groups of centroids in shared memory, kDepth columns at a time.
template <int kDepth>
struct Comparison {
    float x[kDepth];
    float squared[kGroup];

    // squared[g] = squared distance of this thread's point (may be null) to centre(g) * centre_scale, for g < number.
    // All threads of the block must call it. `fresh` marks the first call for a point.
    template <class Centre>
    __device__ void measure(const float* point, float scale, bool fresh, const Centre& centre, float centre_scale,
                            int number, int64_t width, float* tile) {
#pragma unroll
        for (int g = 0; g < kGroup; ++g) squared[g] = 0;
        for (int64_t d = 0; d < width; d += kDepth) {
            __syncthreads();
            for (int i = threadIdx.x; i < kGroup * kDepth; i += kProblemThreads) {
                const int g = i / kDepth, c = i % kDepth;
                tile[i] = g < number && d + c < width ? centre(g)[d + c] * centre_scale : 0.0f;
            }
            if (fresh || width > kDepth)
#pragma unroll
                for (int c = 0; c < kDepth; ++c) x[c] = point && d + c < width ? point[d + c] * scale : 0.0f;
            __syncthreads();
#pragma unroll
            for (int g = 0; g < kGroup; ++g)
#pragma unroll
                for (int c = 0; c < kDepth; ++c) {
                    const float difference = x[c] - tile[g * kDepth + c];
                    squared[g] = fmaf(difference, difference, squared[g]);
                }
        }
    }

    // The nearest centroid, ties to the lowest index, and its squared distance.
    __device__ void nearest(const float* point, float scale, const float* centroids, float centroids_scale,
                            int64_t clusters, int64_t width, float* tile, float& least, int32_t& label) {
        least = INFINITY;
        label = 0;
        for (int64_t k = 0; k < clusters; k += kGroup) {
            const int number = int(clusters - k < kGroup ? clusters - k : kGroup);
            measure(
                point, scale, k == 0, [&](int g) { return centroids + (k + g) * width; }, centroids_scale, number,
                width, tile);
#pragma unroll
            for (int g = 0; g < kGroup; ++g)
                if (g < number && squared[g] < least) {
                    least = squared[g];
                    label = int32_t(k + g);
                }
        }
    }
};

template <int kDepth>
struct Depth {
    static constexpr int value = kDepth;
};

// kernel(Depth<columns at a time>()) for the least multiple of 4 that holds a row; rows wider than 32 take several
// passes.
template <class Kernel>
auto by_width(int64_t width, const Kernel& kernel) {
    switch ((width + 3) / 4) {
        case 0:
        case 1:
            return kernel(Depth<4>());
        case 2:
            return kernel(Depth<8>());
        case 3:
            return kernel(Depth<12>());
        case 4:
            return kernel(Depth<16>());
        case 5:
            return kernel(Depth<20>());
        case 6:
            return kernel(Depth<24>());
        case 7:
            return kernel(Depth<28>());
        default:
            return kernel(Depth<32>());
    }
}

}  // namespace sopr::cuda
