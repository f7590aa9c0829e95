// Sums of the tokens' gradients by state. Most states have one token of each policy; those of several find the others
// by looking through the rows, so that the order of sums is fixed.
#include <climits>

#include "cuda/launch.h"
#include "cuda/segment_encoder_tiles.h"

namespace sopr::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) clear_states_kernel(int64_t states, int32_t* first, int32_t* count) {
    const int64_t u = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (u >= states) return;
    first[u] = INT_MAX;
    count[u] = 0;
}

// The state of token i of all subsets, -1 after the last segment of a subset.
__device__ int32_t state_of(const SegmentEncoder& p, int64_t i) {
    const int64_t subset = i / p.subset_size;
    return i % p.subset_size < p.offsets[subset * (p.clusters + 1) + p.clusters] ? p.rows[i] : -1;
}

// first, count: tokens of each state.
__global__ void __launch_bounds__(kThreads) count_tokens_kernel(SegmentEncoder p, int32_t* first, int32_t* count) {
    const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    const int32_t u = i < p.subsets * p.subset_size ? state_of(p, i) : -1;
    if (u < 0) return;
    atomicMin(first + u, int32_t(i));
    atomicAdd(count + u, 1);
}

// A warp per state.
__global__ void __launch_bounds__(kThreads)
    sum_tokens_kernel(SegmentEncoder p, const float* tokens, const int32_t* first, const int32_t* count, float* out) {
    const int lane = threadIdx.x % kWarpSize;
    const int64_t u = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / kWarpSize;
    if (u >= p.states_count) return;
    const int64_t all = p.subsets * p.subset_size, width = p.column_width;
    const auto add = [&](int64_t token, bool more) {
        for (int64_t i = lane; i < p.policies * width; i += kWarpSize) {
            const int64_t policy = i / width, column = i % width;
            const float value = token < 0 ? 0.0f : tokens[(policy * all + token) * width + column];
            float& to = out[(policy * p.states_count + u) * width + column];
            to = more ? to + value : value;
        }
    };
    int32_t left = count[u];
    add(left ? first[u] : -1, false);
    for (int64_t i = left ? first[u] + 1 : 0; left > 1; i += kWarpSize) {
        unsigned found = __ballot_sync(kWholeWarp, i + lane < all && state_of(p, i + lane) == u);
        for (; found; found &= found - 1, --left) add(i + __ffs(int(found)) - 1, true);
    }
}

}  // namespace

void sum_tokens(const SegmentEncoder& p, const float* grad_tokens, int32_t* scratch, float* grad_columns,
                cudaStream_t stream) {
    const int64_t states = p.states_count, tokens = p.subsets * p.subset_size;
    if (states == 0) return;
    int32_t *const first = scratch, *const count = scratch + states;
    launch("segment_encoder columns", clear_states_kernel, (states + kThreads - 1) / kThreads, 1, kThreads, stream,
           states, first, count);
    if (tokens)
        launch("segment_encoder columns", count_tokens_kernel, (tokens + kThreads - 1) / kThreads, 1, kThreads, stream,
               p, first, count);
    constexpr int kStates = kThreads / kWarpSize;
    launch("segment_encoder columns", sum_tokens_kernel, (states + kStates - 1) / kStates, 1, kThreads, stream, p,
           grad_tokens, static_cast<const int32_t*>(first), static_cast<const int32_t*>(count), grad_columns);
}

}  // namespace sopr::cuda
