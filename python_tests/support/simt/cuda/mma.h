// Replaces csrc/cuda/mma.h: the same functions on the CPU (mma.cpp).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sopr::cuda {

inline float as_new(float x) { return x; }
uint32_t to_bf16(float low, float high);
void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void load_matrices(uint32_t (&r)[2], const void* row);
void load_matrices(uint32_t (&r)[4], const void* row);
void load_matrices_transposed(uint32_t (&r)[2], const void* row);
void load_matrices_transposed(uint32_t (&r)[4], const void* row);

// A copy is done as late as allowed, in wait_for_copies, so that a missing wait shows.
void copy_async(void* to, const void* from);
void end_copies();
void wait_for_copies(int groups);
template <int kGroups>
void wait_for_copies() {
    wait_for_copies(kGroups);
}

}  // namespace sopr::cuda
