// Tensor-core instructions of sm_80 and later, one function per PTX instruction. python_tests/support/simt/cuda/mma.h
// replaces this file on the CPU; its mma.cpp implements the fragments as the PTX manual's tables give them.
//
// Layouts: PTX ISA 9.2, sections 9.7.14.5.7 (mma.m16n8k8), 9.7.14.5.8 (mma.m16n8k16) and 9.7.14.5.15 (ldmatrix).
//
// Lane l holds, with g = l / 4 and t = l % 4:
//   sums (16, 8)        c[0], c[1]: row g, columns 2 t, 2 t + 1;  c[2], c[3]: the same of row g + 8
//   TF32 a (16, 8)      a[0]: (g, t)  a[1]: (g + 8, t)  a[2]: (g, t + 4)  a[3]: (g + 8, t + 4)
//   TF32 b (8, 8)       b[0]: (t, g)  b[1]: (t + 4, g)
//   bf16 a (16, 16)     pairs of columns 2 t, 2 t + 1 of a[0]: row g, a[1]: row g + 8; a[2], a[3]: eight columns later
//   bf16 b (16, 8)      pairs of rows 2 t, 2 t + 1 in column g: b[0]; eight rows later: b[1]
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "the CUDA kernels need compute capability 8.0; set CMAKE_CUDA_ARCHITECTURES to 80 or later"
#endif

namespace sopr::cuda {

// x, hidden from the compiler: what depends on it is computed anew, not kept in registers since an earlier use of x.
__device__ __forceinline__ float as_new(float x) {
    asm volatile("" : "+f"(x));
    return x;
}

// The nearest bf16 numbers, ties to even: `low` in the lower half.
__device__ __forceinline__ uint32_t to_bf16(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t shared_address(const void* address) {
    return uint32_t(__cvta_generic_to_shared(address));
}

// Load 2 or 4 matrices of 8 rows of 16 bytes from shared memory. Lane l of 8 i : 8 i + 8 gives the address of row l - 8
// i of matrix i; r[i] of lane l is word l % 4 of row l / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same with every matrix of 8 x 8 halves transposed: r[i] of lane l is rows 2 (l % 4) and 2 (l % 4) + 1 of column
// l / 4.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Copy 16 bytes to shared memory. They arrive when wait_for_copies says so; barriers then show them to other threads.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// End a group of copies; a group may be empty.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Wait until at most kGroups of this thread's last groups are under way.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace sopr::cuda
