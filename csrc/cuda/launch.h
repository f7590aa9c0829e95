// Launch of a kernel on the caller's stream, with an error that names the kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace sopr::cuda {

constexpr int kWarpSize = 32;  // threads of a warp
constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

// Run kernel(arguments...) on a grid of (blocks_x, blocks_y) blocks.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y, int threads,
            cudaStream_t stream, Parameters... arguments) {
    if (blocks_x > 0x7FFFFFFF || blocks_y > 0xFFFF)
        throw std::runtime_error(std::string("sopr_fast CUDA kernel ") + name +
                                 ": too many blocks for one launch; pass smaller batches");
    kernel<<<dim3(unsigned(blocks_x), unsigned(blocks_y)), threads, 0, stream>>>(arguments...);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("sopr_fast CUDA kernel ") + name + ": " + cudaGetErrorString(error));
}

}  // namespace sopr::cuda
