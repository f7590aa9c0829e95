// The kinds of kernels of the encoder on tensor cores: one for each precision and width of heads.
#pragma once

#include "cuda/segment_encoder_backward_tile.h"
#include "cuda/segment_encoder_tiles.h"

// The build compiles one kind at a time, since all take minutes; without the macros a file has them all.
#ifdef SOPR_PRECISION
#define FOR_EACH_KIND(use) use(SOPR_PRECISION, SOPR_HEAD_WIDTH)
#else
#define FOR_EACH_KIND(use) use(Tf32, 8) use(Tf32, 16) use(Tf32, 32) use(Bf16, 8) use(Bf16, 16) use(Bf16, 32)
#endif

namespace sopr::cuda {

template <class P, int kDim>
int64_t forward_workspace(const SegmentEncoder&);  // in floats
template <class P, int kDim>
void run_forward(const SegmentEncoder&, cudaStream_t);
template <class P, int kDim>
int64_t backward_workspace(const SegmentEncoder&, bool columns_grad);
template <class P, int kDim>
void run_backward(const SegmentEncoderBackward&, cudaStream_t);

template <class P>
int shared_bytes(const SegmentEncoder& p) {
    return BackwardMemory<P>::kFixed + kSlots * PackedWeights(p).words_per_chunk * int(sizeof(uint32_t));
}

}  // namespace sopr::cuda
