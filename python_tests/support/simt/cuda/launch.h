// Replaces csrc/cuda/launch.h: runs clusters of blocks one by one, with threads alternately in ascending and descending
// order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <tuple>

namespace sopr::cuda {

constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

inline int64_t launches = 0;
inline void check(const char*, int) {}
inline int shared_memory_limit() { return simt::device.shared_bytes; }
inline int processors() { return simt::device.processors; }
template <class Kernel>
bool has_clusters(Kernel) {
    return simt::device.clusters && simt::device.code_clusters;
}
template <class Kernel>
int clusters_at_once(Kernel, int, int, int) {
    return 1;
}
template <class Kernel>
int64_t blocks_at_once(Kernel, int, int) {
    return 3;  // so that blocks take several tiles
}
inline unsigned char* dynamic_shared() { return simt::dynamic_shared(); }

template <class... Parameters>
void launch_in_clusters(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y,
                        int cluster, int threads, int shared_bytes, cudaStream_t, Parameters... arguments) {
    struct Call {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> arguments;
    } call{kernel, {arguments...}};
    ++launches;
    gridDim = dim3(unsigned(blocks_x), unsigned(blocks_y));
    blockDim = dim3(unsigned(threads));
    for (int64_t x = 0; x < blocks_x; x += cluster)
        for (int64_t y = 0; y < blocks_y; ++y) {
            blockIdx = dim3(unsigned(x), unsigned(y));
            simt::run_cluster(
                name, cluster, threads, shared_bytes, (x / cluster + y) % 2, x + y == 0,
                [](void* context) {
                    Call& call = *static_cast<Call*>(context);
                    std::apply(call.kernel, call.arguments);
                },
                &call);
        }
}

template <class... Parameters>
void launch_with_memory(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y,
                        int threads, int shared_bytes, cudaStream_t stream, Parameters... arguments) {
    launch_in_clusters(name, kernel, blocks_x, blocks_y, 1, threads, shared_bytes, stream, arguments...);
}

template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y, int threads,
            cudaStream_t stream, Parameters... arguments) {
    launch_with_memory(name, kernel, blocks_x, blocks_y, threads, 0, stream, arguments...);
}

}  // namespace sopr::cuda
