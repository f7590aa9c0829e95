// One block per problem, one thread per cluster: each thread reads all labels and writes the rows of its cluster.
#include "cuda/kernels_cuda.h"
#include "cuda/launch.h"

namespace sopr::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) sort_kernel(SortByCluster p) {
    const int32_t* labels = p.labels + blockIdx.x * p.count;
    int32_t* rows = p.rows + blockIdx.x * p.count;
    int32_t* offsets = p.offsets + blockIdx.x * (p.clusters + 1);
    for (int64_t k = threadIdx.x; k < p.clusters; k += kThreads) {
        int32_t size = 0;
        for (int64_t i = 0; i < p.count; ++i) size += labels[i] == k;
        offsets[k + 1] = size;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        offsets[0] = 0;
        for (int64_t k = 0; k < p.clusters; ++k) offsets[k + 1] += offsets[k];
    }
    __syncthreads();
    for (int64_t k = threadIdx.x; k < p.clusters; k += kThreads) {
        int32_t* to = rows + offsets[k];
        for (int64_t i = 0; i < p.count; ++i)
            if (labels[i] == k) *to++ = int32_t(i);
    }
}

}  // namespace

void sort_by_cluster(const SortByCluster& p, cudaStream_t stream) {
    if (p.problems == 0) return;
    launch("sort_by_cluster", sort_kernel, p.problems, 1, kThreads, stream, p);
}

}  // namespace sopr::cuda
