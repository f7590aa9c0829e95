// Launch of a kernel on the caller's stream, with an error that names the kernel.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace sopr::cuda {

constexpr int kWarpSize = 32;  // threads of a warp
constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

inline std::atomic<int64_t> launches{0};  // of all kernels so far

inline void check(const char* name, cudaError_t error) {
    if (error != cudaSuccess)
        throw std::runtime_error(std::string("sopr_fast CUDA kernel ") + name + ": " + cudaGetErrorString(error));
}

// With SOPR_FAST_CUDA_DEBUG=1, wait for the kernel, so that its errors are not reported by a later call. Capture of a
// graph allows no waiting.
inline void check_finished(const char* name, cudaStream_t stream) {
    static const char* const value = std::getenv("SOPR_FAST_CUDA_DEBUG");
    if (!value || std::string(value) == "0") return;
    cudaStreamCaptureStatus capture;
    check(name, cudaStreamIsCapturing(stream, &capture));
    if (capture == cudaStreamCaptureStatusNone) check(name, cudaStreamSynchronize(stream));
}

inline int attribute_of_device(cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    check("attributes", cudaGetDevice(&device));
    check("attributes", cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}
inline int shared_memory_limit() { return attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

template <class... Parameters>
void allow_memory(const char* name, void (*kernel)(Parameters...), int bytes) {
    if (bytes > 48 << 10) check(name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// How many blocks of a kernel the device runs at the same time.
template <class... Parameters>
int64_t blocks_at_once(void (*kernel)(Parameters...), int threads, int shared_bytes) {
    allow_memory("occupancy", kernel, shared_bytes);
    int blocks = 0;
    check("occupancy", cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, size_t(shared_bytes)));
    return int64_t(blocks < 1 ? 1 : blocks) * attribute_of_device(cudaDevAttrMultiProcessorCount);
}

// The memory whose size launch_with_memory sets.
__device__ inline unsigned char* dynamic_shared() {
    extern __shared__ __align__(16) unsigned char memory[];
    return memory;
}

// Run kernel(arguments...) on a grid of (blocks_x, blocks_y) blocks with `shared_bytes` of dynamic shared memory.
template <class... Parameters>
void launch_with_memory(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y,
                        int threads, int shared_bytes, cudaStream_t stream, Parameters... arguments) {
    if (blocks_x > 0x7FFFFFFF || blocks_y > 0xFFFF)
        throw std::runtime_error(std::string("sopr_fast CUDA kernel ") + name +
                                 ": too many blocks for one launch; pass smaller batches");
    allow_memory(name, kernel, shared_bytes);
    ++launches;
    kernel<<<dim3(unsigned(blocks_x), unsigned(blocks_y)), threads, size_t(shared_bytes), stream>>>(arguments...);
    check(name, cudaGetLastError());
    check_finished(name, stream);
}

// The same without dynamic shared memory.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y, int threads,
            cudaStream_t stream, Parameters... arguments) {
    launch_with_memory(name, kernel, blocks_x, blocks_y, threads, 0, stream, arguments...);
}

}  // namespace sopr::cuda
