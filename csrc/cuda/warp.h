// Sums and maxima over the lanes of a warp; every lane gets the result.
#pragma once

#include "cuda/launch.h"

namespace sopr::cuda {

__device__ inline float warp_sum(float x) {
    for (int step = kWarpSize / 2; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
    return x;
}

__device__ inline float warp_max(float x) {
    for (int step = kWarpSize / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, step));
    return x;
}

}  // namespace sopr::cuda
