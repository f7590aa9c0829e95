// The part of CUDA that csrc/cuda uses, on the CPU. Every thread of a block is a fiber that runs to its next barrier or
// shuffle, so kernels compiled by a C++ compiler compute what they would on a GPU, slowly.
#pragma once

#include <cmath>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __noinline__
#define __launch_bounds__(...)

using cudaStream_t = void*;

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    dim3(unsigned x = 1, unsigned y = 1) : x(x), y(y) {}
};

namespace simt {

struct Barrier {
    int size = 0, arrived = 0;
    unsigned generation = 0;
};

void wait(Barrier& barrier);
Barrier& block_barrier();
Barrier& warp_barrier();
uint64_t& exchange(int lane);  // a slot of this thread's warp
int lane();

// Run body(context) in `threads` fibers; throws if some wait at a barrier that others never reach.
void run_block(int threads, bool reversed, void (*body)(void*), void* context);

template <class T>
T shuffle(T value, int from) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    __builtin_memcpy(&exchange(lane()), &value, sizeof value);
    wait(warp_barrier());
    __builtin_memcpy(&value, &exchange(from), sizeof value);
    wait(warp_barrier());
    return value;
}

}  // namespace simt

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() { simt::wait(simt::block_barrier()); }
inline void __syncwarp() { simt::wait(simt::warp_barrier()); }
template <class T>
T __shfl_sync(unsigned, T value, int from) {
    return simt::shuffle(value, from);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int flip) {
    return simt::shuffle(value, simt::lane() ^ flip);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int by) {
    return simt::shuffle(value, simt::lane() < by ? simt::lane() : simt::lane() - by);
}
inline unsigned __ballot_sync(unsigned, bool yes) {
    unsigned all = 0;
    for (int lane = 0; lane < 32; ++lane) all |= unsigned(simt::shuffle(int(yes), lane)) << lane;
    return all;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
template <class T>
T atomicAdd(T* to, T value) {
    const T old = *to;
    *to += value;
    return old;
}
