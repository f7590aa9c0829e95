// The part of CUDA that csrc/cuda uses, on the CPU. Every thread of a block is a fiber that runs to its next barrier or
// shuffle, so kernels compiled by a C++ compiler compute what they would on a GPU, slowly.
//
// Kernels are compiled with -fsanitize=thread, whose calls shadow.cpp implements: it reports races (see there).
#pragma once

#include <cmath>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __noinline__
#define __forceinline__ inline
#define __launch_bounds__(...)

using cudaStream_t = void*;
inline int cudaSetDevice(int) { return 0; }

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3(unsigned x = 1, unsigned y = 1) : x(x), y(y) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }

namespace simt {

// The device, by default one of sm_90; whether the code was made for such; and how many rows of a problem of k-means
// are worth a block.
struct Device {
    bool clusters = true, code_clusters = true;
    int processors = 132, shared_bytes = 227 << 10, least_rows = 512;
};
extern Device device;
void count_distances(int by_warp);  // that k-means computes

struct Barrier {
    int size = 0, arrived = 0;
    unsigned generation = 0;
};

void wait_for_cluster();
void wait_for_block();
void wait_for_warp();  // with the memory order of __syncwarp
int lane();

// Give a value of at most 64 bytes to the warp; returns those of its lanes, valid until the next but one call. Orders
// no memory, as shuffles do not.
struct Values {
    const char* of_lanes;
    template <class T>
    T of(int lane) const {
        T value;
        __builtin_memcpy(&value, of_lanes + 64 * lane, sizeof value);
        return value;
    }
};
Values exchange(const void* value, int size);

template <class T>
Values exchange(const T& value) {
    static_assert(sizeof(T) <= 64);
    return exchange(&value, sizeof value);
}

// Run body(context) in `threads` fibers for each of `number` blocks, which form a cluster, from blockIdx on; throws if
// some wait at a barrier that others never reach or two race. `reversed` runs them in descending order. `first` marks
// the first cluster of a launch. Variables declared __shared__ exist once, so clusters of several blocks must do
// without: races report those that do not.
void run_cluster(const char* name, int number, int threads, int shared_bytes, bool reversed, bool first,
                 void (*body)(void*), void* context);
unsigned char* dynamic_shared();
unsigned char* shared_of_block(int block);  // of this thread's cluster
int block_in_cluster();
int blocks_in_cluster();
void forget_copies();  // of cuda/mma.h that no thread waited for

}  // namespace simt

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() { simt::wait_for_block(); }
inline void __syncwarp() { simt::wait_for_warp(); }
template <class T>
T __shfl_sync(unsigned, T value, int from) {
    return simt::exchange(value).template of<T>(from);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int flip) {
    return simt::exchange(value).template of<T>(simt::lane() ^ flip);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int by) {
    return simt::exchange(value).template of<T>(simt::lane() < by ? simt::lane() : simt::lane() - by);
}
inline unsigned __ballot_sync(unsigned, bool yes) {
    const simt::Values values = simt::exchange(yes);
    unsigned all = 0;
    for (int lane = 0; lane < 32; ++lane) all |= unsigned(values.of<bool>(lane)) << lane;
    return all;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    const simt::Values values = simt::exchange(value);
    unsigned largest = 0;
    for (int lane = 0; lane < 32; ++lane)
        if (values.of<unsigned>(lane) > largest) largest = values.of<unsigned>(lane);
    return largest;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline unsigned __funnelshift_l(unsigned low, unsigned high, int by) {
    return unsigned(((uint64_t(high) << 32 | low) << by) >> 32);
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
// Atomic operations do not race with each other.
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T atomicMin(T* to, T value) {
    const T old = *to;
    if (value < old) *to = value;
    return old;
}
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T atomicMax(T* to, T value) {
    const T old = *to;
    if (value > old) *to = value;
    return old;
}
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T atomicAdd(T* to, T value) {
    const T old = *to;
    *to += value;
    return old;
}
