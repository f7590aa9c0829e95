// The CUDA kernels: each runs on the given stream of the current device.
#pragma once

#include <cuda_runtime.h>

#include "kernels.h"

namespace sopr::cuda {

void segment_mean(const SegmentMean&, cudaStream_t stream);
void segment_mean_backward(const SegmentMeanBackward&, cudaStream_t stream);
void segment_dropout(const SegmentDropout&, cudaStream_t stream);
void segment_attention(const SegmentAttention&, cudaStream_t stream);
void segment_attention_backward(const SegmentAttentionBackward&, cudaStream_t stream);

}  // namespace sopr::cuda
