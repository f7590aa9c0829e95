// The encoder on tensor cores; segment_encoder_kinds.cu chooses among its kernels.
#pragma once

#include <cuda_runtime.h>

#include "kernels.h"

namespace sopr::cuda {

// Whether the tensor cores take an encoder; segment_encoder.cu takes all.
bool tiles_fit(const SegmentEncoder&);
int64_t segment_encoder_tiles_workspace(const SegmentEncoder&);  // in floats
void segment_encoder_tiles(const SegmentEncoder&, cudaStream_t stream);

// Needs more shared memory than the forward pass.
bool tiles_fit_backward(const SegmentEncoder&);
int64_t segment_encoder_tiles_backward_workspace(const SegmentEncoder&, bool columns_grad);
void segment_encoder_tiles_backward(const SegmentEncoderBackward&, cudaStream_t stream);

void clear(float* x, int64_t floats, cudaStream_t stream);

// grad_columns (P, U, dc) = sums of grad_tokens (P, S, N, dc) over the tokens of each state, in the order of tokens.
// `scratch` has 2 U words.
void sum_tokens(const SegmentEncoder&, const float* grad_tokens, int32_t* scratch, float* grad_columns,
                cudaStream_t stream);

}  // namespace sopr::cuda
