// One block per segment, one thread per eight columns, which share a counter of philox.h.
#include "cuda/kernels_cuda.h"
#include "cuda/launch.h"
#include "dropout_site.h"

namespace sopr::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) dropout_kernel(SegmentDropout p, Segments segments) {
    const int64_t g = blockIdx.x;
    const auto [begin, length] = segments[g];
    const int64_t blocks = (p.width + 7) / 8;
    const DropoutSite site(p.dropout, g);
    for (int64_t item = threadIdx.x; item < length * blocks; item += kThreads) {
        const int64_t row = item / blocks, block = item % blocks;
        const Philox4 bits = site.bits(row, block);
        const int64_t first = (begin + row) * p.width + block * 8;
#pragma unroll
        for (uint32_t c = 0; c < 8; ++c)
            if (block * 8 + c < p.width)
                p.out[first + c] = p.x[first + c] * (philox_draw(bits, c) < site.threshold ? 0.0f : site.scale);
    }
}

}  // namespace

void segment_dropout(const SegmentDropout& p, const Segments& segments, cudaStream_t stream) {
    if (p.segments == 0 || p.width == 0) return;
    launch("segment_dropout", dropout_kernel, p.segments, 1, kThreads, stream, p, segments);
}

void segment_dropout(const SegmentDropout& p, cudaStream_t stream) {
    segment_dropout(p, {p.offsets, p.segments}, stream);
}

}  // namespace sopr::cuda
