// The encoder on tensor cores: segment_encoder_tiles.cu.
#pragma once

#include <cuda_runtime.h>

#include "kernels.h"

namespace sopr::cuda {

// Whether the tensor cores take an encoder; segment_encoder.cu takes all.
bool tiles_fit(const SegmentEncoder&);
int64_t segment_encoder_tiles_workspace(const SegmentEncoder&);  // in floats
void segment_encoder_tiles(const SegmentEncoder&, cudaStream_t stream);

}  // namespace sopr::cuda
