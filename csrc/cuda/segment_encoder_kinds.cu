#include <cstdlib>
#include <cstring>

#include "cuda/segment_encoder_kinds.h"

namespace sopr::cuda {
namespace {

__global__ void clear_kernel(float* x, int64_t count) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x)
        x[i] = 0;
}

// Call use(P(), an integral constant of the width of heads).
template <class P, class Use>
auto by_width_of_heads(const SegmentEncoder& p, const Use& use) {
    switch (p.width / p.heads) {
        case 8:
            return use(P(), std::integral_constant<int, 8>());
        case 16:
            return use(P(), std::integral_constant<int, 16>());
        default:
            return use(P(), std::integral_constant<int, 32>());
    }
}
template <class Use>
auto by_kind(const SegmentEncoder& p, const Use& use) {
    return p.bf16 ? by_width_of_heads<Bf16>(p, use) : by_width_of_heads<Tf32>(p, use);
}

}  // namespace

void clear(float* x, int64_t floats, cudaStream_t stream) {
    if (floats == 0) return;
    launch("segment_encoder clear", clear_kernel, (floats + 4095) / 4096, 1, 256, stream, x, floats);
}

bool tiles_fit(const SegmentEncoder& p) {
    const char* const wish = std::getenv("SOPR_FAST_TENSOR_CORES");
    if (wish && std::strcmp(wish, "0") == 0) return false;
    const int64_t dim = p.width / p.heads;
    return p.width == kWidth && (dim == 8 || dim == 16 || dim == 32) && p.feedforward % 32 == 0 && p.layers > 0;
}

int64_t segment_encoder_tiles_workspace(const SegmentEncoder& p) {
    return by_kind(p, [&](auto kind, auto dim) { return forward_workspace<decltype(kind), dim.value>(p); });
}

void segment_encoder_tiles(const SegmentEncoder& p, cudaStream_t stream) {
    if (p.policies * p.subsets * (p.pool ? p.clusters : p.subset_size) == 0) return;
    by_kind(p, [&](auto kind, auto dim) { run_forward<decltype(kind), dim.value>(p, stream); });
}

bool tiles_fit_backward(const SegmentEncoder& p) {
    return tiles_fit(p) && (p.bf16 ? shared_bytes<Bf16>(p) : shared_bytes<Tf32>(p)) <= shared_memory_limit();
}

int64_t segment_encoder_tiles_backward_workspace(const SegmentEncoder& p, bool columns_grad) {
    return by_kind(p,
                   [&](auto kind, auto dim) { return backward_workspace<decltype(kind), dim.value>(p, columns_grad); });
}

void segment_encoder_tiles_backward(const SegmentEncoderBackward& b, cudaStream_t stream) {
    by_kind(b.forward, [&](auto kind, auto dim) { run_backward<decltype(kind), dim.value>(b, stream); });
}

}  // namespace sopr::cuda
