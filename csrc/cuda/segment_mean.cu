// One block per segment. Adjacent threads own adjacent columns, so that reads are coalesced; where columns are fewer
// than threads, groups of threads sum runs of kRun rows side by side. Runs are added in their order.
#include "cuda/kernels_cuda.h"
#include "cuda/launch.h"

namespace sopr::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kRun = 16;

// Columns at a time: 32, 64, 128 or 256.
int columns_of(int64_t width) {
    int columns = kWarpSize;
    while (columns < width && columns < kThreads) columns *= 2;
    return columns;
}

__global__ void __launch_bounds__(kThreads) mean_kernel(SegmentMean p, Segments segments, int columns) {
    __shared__ float parts[kThreads];
    const int64_t segment = blockIdx.x;
    const auto [begin, length] = segments[segment];
    const float weight = length > 0 ? 1.0f / float(length) : 0.0f;
    const int group = int(threadIdx.x) / columns, column = int(threadIdx.x) % columns, groups = kThreads / columns;
    for (int64_t first = 0; first < p.width; first += columns) {
        const int64_t e = first + column;
        const float* x = p.x + begin * p.width + e;
        float sum = 0;
        for (int64_t row = 0; row < length; row += groups * kRun) {
            const int64_t run = row + group * kRun, end = run + kRun < length ? run + kRun : length;
            float part = 0;
            for (int64_t t = run; t < end && e < p.width; ++t) part += x[t * p.width];
            parts[threadIdx.x] = part;
            __syncthreads();
            for (int i = column; i < kThreads && group == 0; i += columns) sum += parts[i];
            __syncthreads();
        }
        if (group == 0 && e < p.width) p.out[segment * p.width + e] = sum * weight;
    }
}

__global__ void __launch_bounds__(kThreads) mean_backward_kernel(SegmentMeanBackward p) {
    const int64_t g = blockIdx.x;
    const int64_t begin = p.offsets[g], end = p.offsets[g + 1];
    const float weight = end > begin ? 1.0f / float(end - begin) : 0.0f;
    for (int64_t i = threadIdx.x; i < (end - begin) * p.width; i += kThreads)
        p.grad_x[begin * p.width + i] = p.grad_out[g * p.width + i % p.width] * weight;
}

}  // namespace

void segment_mean(const SegmentMean& p, const Segments& segments, cudaStream_t stream) {
    if (p.segments == 0 || p.width == 0) return;
    launch("segment_mean", mean_kernel, p.segments, 1, kThreads, stream, p, segments, columns_of(p.width));
}

void segment_mean(const SegmentMean& p, cudaStream_t stream) { segment_mean(p, {p.offsets, p.segments}, stream); }

void segment_mean_backward(const SegmentMeanBackward& p, cudaStream_t stream) {
    if (p.segments == 0 || p.width == 0) return;
    launch("segment_mean_backward", mean_backward_kernel, p.segments, 1, kThreads, stream, p);
}

}  // namespace sopr::cuda
