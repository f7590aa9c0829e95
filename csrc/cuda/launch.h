// What every CUDA kernel's launcher shares: the caller's stream, and an error that says which kernel failed.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace sopr {

inline void check_launch(const char* kernel) {
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("sopr_fast CUDA kernel ") + kernel + ": " + cudaGetErrorString(error));
}

}  // namespace sopr
