// Linear layer of the encoder: segment_encoder_linear.cu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sopr::cuda {

// out = in weight^T + bias, followed by ReLU if `relu`. Outputs are stored as matrices of `width` columns, one after
// the other.
struct Linear {
    const float* in;      // (rows, inputs)
    const float* weight;  // (outputs, inputs)
    const float* bias;    // (outputs)
    float* out;           // (outputs / width, rows, width)
    int64_t rows, inputs, outputs, width;
    bool relu;
};

void linear(const Linear&, cudaStream_t stream);

}  // namespace sopr::cuda
