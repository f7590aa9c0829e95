// Counting sort of segments by the power of two of their lengths, in one block. Segments of one class come in any
// order: it decides when a segment is computed, not its result.
#include "cuda/kernels_cuda.h"
#include "cuda/launch.h"

namespace sopr::cuda {
namespace {

constexpr int kThreads = 1024, kClasses = 32;

// 0 for the longest segments.
__device__ int class_of(int64_t length) {
    int bits = 0;
    for (; length > 0; length /= 2) ++bits;
    return bits < kClasses ? kClasses - 1 - bits : 0;
}

__global__ void __launch_bounds__(kThreads) order_kernel(Segments segments, int64_t count, int32_t* order) {
    __shared__ int32_t next[kClasses];
    if (threadIdx.x < kClasses) next[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count; i += kThreads) atomicAdd(&next[class_of(segments[i].length)], 1);
    __syncthreads();
    if (threadIdx.x == 0)
        for (int32_t c = 0, before = 0; c < kClasses; ++c) {
            const int32_t size = next[c];
            next[c] = before;
            before += size;
        }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count; i += kThreads)
        order[atomicAdd(&next[class_of(segments[i].length)], 1)] = int32_t(i);
}

}  // namespace

void order_segments(const Segments& segments, int64_t count, int32_t* order, cudaStream_t stream) {
    launch("segment order", order_kernel, 1, 1, kThreads, stream, segments, count, order);
}

}  // namespace sopr::cuda
