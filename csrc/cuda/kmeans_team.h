// The blocks that share a k-means problem: reductions over a block and over all of them. Everything shared lies in
// dynamic shared memory, of which every block has its own.
#pragma once

#include <stdexcept>
#include <string>

#include "cuda/block_cluster.h"
#include "cuda/kmeans_plan.h"
#include "cuda/launch.h"

namespace sopr::cuda {

__device__ inline int lane_of_thread() { return int(threadIdx.x % kWarpSize); }
__device__ inline int warp_of_thread() { return int(threadIdx.x / kWarpSize); }

struct Team {
    static constexpr int kBytes = kTeamBytes;

    unsigned char* memory;  // kBytes
    unsigned rank, blocks;
    unsigned turn = 0;

    __device__ explicit Team(unsigned char* memory) : memory(memory), rank(cluster_rank()), blocks(cluster_blocks()) {}

    __device__ int64_t problem() const { return blockIdx.x / blocks; }
    __device__ void wait() const {
        if (blocks == 1)
            __syncthreads();
        else
            wait_for_cluster();
    }

    // Combine the values of all threads of the block; the order does not depend on the run. Includes a barrier.
    template <class T, class Combine>
    __device__ T of_block(T value, const Combine& combine) const {
        static_assert(sizeof(T) <= 8);
        T* parts = reinterpret_cast<T*>(memory);
        for (int step = kWarpSize / 2; step > 0; step /= 2)
            value = combine(value, __shfl_xor_sync(kWholeWarp, value, step));
        __syncthreads();
        if (lane_of_thread() == 0) parts[warp_of_thread()] = value;
        __syncthreads();
        value = parts[0];
        for (int warp = 1; warp < kProblemWarps; ++warp) value = combine(value, parts[warp]);
        return value;
    }

    // The same over all blocks. Includes wait(). Blocks publish their values in two places by turns, so that none is
    // overwritten while others read it.
    template <class T, class Combine>
    __device__ T of_all(T value, const Combine& combine) {
        value = of_block(value, combine);
        if (blocks == 1) return value;
        T* own = reinterpret_cast<T*>(memory + (kProblemWarps + turn) * 8);
        turn ^= 1;
        if (threadIdx.x == 0) *own = value;
        wait_for_cluster();
        value = *shared_of_block(own, 0);
        for (unsigned block = 1; block < blocks; ++block) value = combine(value, *shared_of_block(own, block));
        return value;
    }

    // The sum over the threads of the block before this one.
    __device__ int32_t sum_before(int32_t value) const {
        int32_t* parts = reinterpret_cast<int32_t*>(memory);
        int32_t sum = value;
        for (int step = 1; step < kWarpSize; step *= 2) {
            const int32_t before = __shfl_up_sync(kWholeWarp, sum, step);
            if (lane_of_thread() >= step) sum += before;
        }
        __syncthreads();
        if (lane_of_thread() == kWarpSize - 1) parts[warp_of_thread()] = sum;
        __syncthreads();
        sum -= value;
        for (int warp = 0; warp < warp_of_thread(); ++warp) sum += parts[warp];
        return sum;
    }

    template <class T>
    __device__ T sum(T value) {
        return of_all(value, [](T a, T b) { return a + b; });
    }
    template <class T>
    __device__ T largest(T value) {
        return of_all(value, [](T a, T b) { return a > b ? a : b; });
    }
};

// Add to a number in global memory, which the compiler must know: else each addition waits for the one before.
__device__ inline void add_in_memory(unsigned long long* to, unsigned long long value) {
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(to));
#endif
    atomicAdd(to, value);
}

// The bits of |x|, which are ordered like the numbers.
__device__ inline unsigned magnitude_bits(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

// The largest magnitude of a problem's `count` numbers, of which every block reads some.
__device__ inline float largest_magnitude(Team& team, const float* x, int64_t count) {
    unsigned largest = 0;
    for (int64_t i = team.rank * kProblemThreads + threadIdx.x; i < count; i += team.blocks * kProblemThreads) {
        const unsigned bits = magnitude_bits(x[i]);
        if (bits > largest) largest = bits;
    }
    return __uint_as_float(team.largest(largest));
}

// The plan for the current device.
template <class... Parameters>
KMeansPlan plan_on_device(const char* name, void (*kernel)(Parameters...), const KMeansShape& shape) {
    KMeansDevice device = {has_clusters(kernel), processors(), shared_memory_limit(), SOPR_KMEANS_LEAST_ROWS};
    KMeansPlan plan = plan_kmeans(device, shape);
    if (plan.blocks > 1 && clusters_at_once(kernel, plan.blocks, kProblemThreads, plan.shared_bytes) == 0) {
        device.block_clusters = false;  // a part of a GPU may be too small
        plan = plan_kmeans(device, shape);
    }
    if (plan.shared_bytes > device.shared_bytes)
        throw std::runtime_error(std::string("sopr_fast CUDA kernel ") + name + ": " + std::to_string(shape.width) +
                                 " columns are too many for shared memory; select or project columns first");
    return plan;
}

}  // namespace sopr::cuda
