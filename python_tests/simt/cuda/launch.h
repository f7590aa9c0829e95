// Replaces csrc/cuda/launch.h: runs the blocks one by one, with threads alternately in ascending and descending order.
#pragma once

#include <cuda_runtime.h>

#include <tuple>

namespace sopr::cuda {

constexpr int kWarpSize = 32;
constexpr unsigned kWholeWarp = 0xFFFFFFFFu;

template <class... Parameters>
void launch(const char*, void (*kernel)(Parameters...), int64_t blocks_x, int64_t blocks_y, int threads, cudaStream_t,
            Parameters... arguments) {
    struct Call {
        void (*kernel)(Parameters...);
        std::tuple<Parameters...> arguments;
    } call{kernel, {arguments...}};
    gridDim = dim3(unsigned(blocks_x), unsigned(blocks_y));
    blockDim = dim3(unsigned(threads));
    for (int64_t x = 0; x < blocks_x; ++x)
        for (int64_t y = 0; y < blocks_y; ++y) {
            blockIdx = dim3(unsigned(x), unsigned(y));
            simt::run_block(
                threads, (x + y) % 2,
                [](void* context) {
                    Call& call = *static_cast<Call*>(context);
                    std::apply(call.kernel, call.arguments);
                },
                &call);
        }
}

}  // namespace sopr::cuda
