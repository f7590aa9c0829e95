// What every CUDA kernel's launcher shares: the caller's stream, and an error that says which kernel failed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace sopr::cuda {

constexpr int kLanes = 32;  // threads of a warp
constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

// Runs kernel(arguments...) on blocks (blocks_x, blocks_y).
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y, int threads,
            cudaStream_t stream, Parameters... arguments) {
    if (blocks_x > 0x7FFFFFFF || blocks_y > 0xFFFF)
        throw std::runtime_error(std::string("sopr_fast CUDA kernel ") + name + ": more blocks than a launch takes");
    kernel<<<dim3(unsigned(blocks_x), unsigned(blocks_y)), threads, 0, stream>>>(arguments...);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("sopr_fast CUDA kernel ") + name + ": " + cudaGetErrorString(error));
}

}  // namespace sopr::cuda
