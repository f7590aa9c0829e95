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
inline int processors() { return attribute_of_device(cudaDevAttrMultiProcessorCount); }

// Whether blocks of a kernel can form clusters. A GPU of sm_90 also runs code that was made for an older one, in which
// every block believes to be alone.
template <class... Parameters>
bool has_clusters(void (*kernel)(Parameters...)) {
    cudaFuncAttributes attributes;
    check("attributes", cudaFuncGetAttributes(&attributes, kernel));
    return attributes.ptxVersion >= 90 && attribute_of_device(cudaDevAttrComputeCapabilityMajor) >= 9;
}

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
    return int64_t(blocks < 1 ? 1 : blocks) * processors();
}

// A cluster of one block is none, which devices before sm_90 require. `attribute` must outlive the result.
inline cudaLaunchConfig_t cluster_config(int64_t blocks_x, int64_t blocks_y, int cluster, int threads, int shared_bytes,
                                         cudaStream_t stream, cudaLaunchAttribute& attribute) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {unsigned(cluster), 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(unsigned(blocks_x), unsigned(blocks_y));
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = size_t(shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
    return config;
}

// The memory whose size launch_with_memory sets.
__device__ inline unsigned char* dynamic_shared() {
    extern __shared__ __align__(16) unsigned char memory[];
    return memory;
}

// How many clusters of a kernel's blocks the device runs at the same time.
template <class... Parameters>
int clusters_at_once(void (*kernel)(Parameters...), int cluster, int threads, int shared_bytes) {
    allow_memory("occupancy", kernel, shared_bytes);
    cudaLaunchAttribute attribute;
    int clusters = 0;
    const cudaLaunchConfig_t config = cluster_config(cluster, 1, cluster, threads, shared_bytes, nullptr, attribute);
    check("occupancy", cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    return clusters;
}

// Run kernel(arguments...) on a grid of (blocks_x, blocks_y) blocks with `shared_bytes` of dynamic shared memory;
// `cluster` blocks along x, of which blocks_x is a multiple, form a cluster.
template <class... Parameters>
void launch_in_clusters(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y,
                        int cluster, int threads, int shared_bytes, cudaStream_t stream, Parameters... arguments) {
    if (blocks_x > 0x7FFFFFFF || blocks_y > 0xFFFF)
        throw std::runtime_error(std::string("sopr_fast CUDA kernel ") + name +
                                 ": too many blocks for one launch; pass smaller batches");
    allow_memory(name, kernel, shared_bytes);
    ++launches;
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config =
        cluster_config(blocks_x, blocks_y, cluster, threads, shared_bytes, stream, attribute);
    check(name, cudaLaunchKernelEx(&config, kernel, arguments...));
    check_finished(name, stream);
}

// The same without clusters.
template <class... Parameters>
void launch_with_memory(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y,
                        int threads, int shared_bytes, cudaStream_t stream, Parameters... arguments) {
    launch_in_clusters(name, kernel, blocks_x, blocks_y, 1, threads, shared_bytes, stream, arguments...);
}

// The same without dynamic shared memory.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y, int threads,
            cudaStream_t stream, Parameters... arguments) {
    launch_with_memory(name, kernel, blocks_x, blocks_y, threads, 0, stream, arguments...);
}

}  // namespace sopr::cuda
