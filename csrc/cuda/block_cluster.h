// Thread-block clusters of sm_90 and later: one function per PTX instruction. On older devices a block is alone.
// python_tests/support/simt/cuda/block_cluster.h replaces this file on the CPU.
//
// PTX ISA 9.2, sections 9.7.13.4 (barrier.cluster), 9.7.9.23 (mapa) and 10 (%cluster_ctarank, %cluster_nctarank).
#pragma once

#include <cuda_runtime.h>

namespace sopr::cuda {

// The number of this block in its cluster.
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

__device__ __forceinline__ unsigned cluster_blocks() {
    unsigned blocks = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
    return blocks;
}

// Wait for all threads of the cluster. What they wrote before, to shared or global memory, is visible to all after.
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// The address, in a block of the cluster, of what `own` is in this block's shared memory. No block may end while others
// read its memory.
template <class T>
__device__ __forceinline__ T* shared_of_block(T* own, unsigned rank) {
#if __CUDA_ARCH__ >= 900
    T* address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(own), "r"(rank));
    return address;
#else
    return own;
#endif
}

}  // namespace sopr::cuda
