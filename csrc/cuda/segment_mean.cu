// One block per segment, one thread per column, so that reads are coalesced. Partial sums of kRun rows keep rounding
// errors of long segments small.
#include "cuda/kernels_cuda.h"
#include "cuda/launch.h"

namespace sopr::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int64_t kRun = 128;

int block_threads(int64_t width) {
    const int64_t rounded = (width + kWarpSize - 1) / kWarpSize * kWarpSize;
    return int(rounded < kMaxThreads ? rounded : kMaxThreads);
}

__global__ void mean_kernel(SegmentMean p, Segments segments) {
    const int64_t g = blockIdx.x;
    const auto [begin, length] = segments[g];
    const float weight = length > 0 ? 1.0f / float(length) : 0.0f;
    for (int64_t e = threadIdx.x; e < p.width; e += blockDim.x) {
        const float* x = p.x + begin * p.width + e;
        float sum = 0;
        for (int64_t run = 0; run < length; run += kRun) {
            float part = 0;
            for (int64_t t = run; t < run + kRun && t < length; ++t) part += x[t * p.width];
            sum += part;
        }
        p.out[g * p.width + e] = sum * weight;
    }
}

__global__ void mean_backward_kernel(SegmentMeanBackward p) {
    const int64_t g = blockIdx.x;
    const int64_t begin = p.offsets[g], end = p.offsets[g + 1];
    const float weight = end > begin ? 1.0f / float(end - begin) : 0.0f;
    for (int64_t e = threadIdx.x; e < p.width; e += blockDim.x) {
        const float grad = p.grad_out[g * p.width + e] * weight;
        for (int64_t t = begin; t < end; ++t) p.grad_x[t * p.width + e] = grad;
    }
}

}  // namespace

void segment_mean(const SegmentMean& p, const Segments& segments, cudaStream_t stream) {
    if (p.segments == 0 || p.width == 0) return;
    launch("segment_mean", mean_kernel, p.segments, 1, block_threads(p.width), stream, p, segments);
}

void segment_mean(const SegmentMean& p, cudaStream_t stream) { segment_mean(p, {p.offsets, p.segments}, stream); }

void segment_mean_backward(const SegmentMeanBackward& p, cudaStream_t stream) {
    if (p.segments == 0 || p.width == 0) return;
    launch("segment_mean_backward", mean_backward_kernel, p.segments, 1, block_threads(p.width), stream, p);
}

}  // namespace sopr::cuda
