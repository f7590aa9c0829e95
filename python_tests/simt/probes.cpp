// Small kernels that try the emulator itself: test_simt.py.
#include <cstdio>
#include <exception>

#include "cuda/cluster.h"
#include "cuda/segment_encoder_products.h"

namespace sopr::cuda {
namespace {

constexpr int kRows = 16, kColumns = 8, kDepth = 16;

// out (16, 8) = a (16, 16) b^T, b (8, 16), in TF32; 3 products of parts instead of one if `split`.
void tf32_kernel(const float* a, const float* b, float* out, int split) {
    float* left = reinterpret_cast<float*>(dynamic_shared());
    float* right = left + kRows * kDepth;
    const int lane = int(threadIdx.x);
    for (int i = lane * 4; i < kRows * kDepth; i += 128) copy_async(left + i, a + i);
    for (int i = lane * 4; i < kColumns * kDepth; i += 128) copy_async(right + i, b + i);
    end_copies();
    wait_for_copies<0>();
    __syncwarp();
    float sums[4] = {};
    for (int k = 0; k < kDepth; k += 8) {
        uint32_t x[4], y[2], high[4], low[4];
        load_matrices(x, left + (lane % 16) * kDepth + k + lane / 16 * 4);
        load_matrices(y, right + (lane % 8) * kDepth + k + lane / 8 % 2 * 4);
        uint32_t y_high[2], y_low[2];
        for (int i = 0; i < 4; ++i) Tf32::split(__uint_as_float(x[i]), high[i], low[i]);
        for (int i = 0; i < 2; ++i) Tf32::split(__uint_as_float(y[i]), y_high[i], y_low[i]);
        if (split) {
            mma_tf32(sums, low, y_high[0], y_high[1]);
            mma_tf32(sums, high, y_low[0], y_low[1]);
        }
        mma_tf32(sums, high, y_high[0], y_high[1]);
    }
    for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * kColumns + lane % 4 * 2 + i % 2] = sums[i];
}

// The same in bf16.
void bf16_kernel(const float* a, const float* b, float* out) {
    uint32_t* left = reinterpret_cast<uint32_t*>(dynamic_shared());
    uint32_t* right = left + kRows * kDepth / 2;
    const int lane = int(threadIdx.x);
    for (int i = lane; i < kRows * kDepth / 2; i += 32) left[i] = to_bf16(a[2 * i], a[2 * i + 1]);
    for (int i = lane; i < kColumns * kDepth / 2; i += 32) right[i] = to_bf16(b[2 * i], b[2 * i + 1]);
    __syncwarp();
    float sums[4] = {};
    uint32_t x[4], y[2];
    load_matrices(x, left + (lane % 16) * kDepth / 2 + lane / 16 * 4);
    load_matrices(y, right + (lane % 8) * kDepth / 2 + lane / 8 % 2 * 4);
    mma_bf16(sums, x, y[0], y[1]);
    for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * kColumns + lane % 4 * 2 + i % 2] = sums[i];
}

// c (lane, 4) = a (lane, 4) b (lane, 2), registers of fragments.
void fragments_kernel(const uint32_t* a, const uint32_t* b, float* c, int bf16) {
    const int lane = int(threadIdx.x);
    uint32_t left[4];
    float sums[4] = {};
    for (int i = 0; i < 4; ++i) left[i] = a[4 * lane + i];
    if (bf16)
        mma_bf16(sums, left, b[2 * lane], b[2 * lane + 1]);
    else
        mma_tf32(sums, left, b[2 * lane], b[2 * lane + 1]);
    for (int i = 0; i < 4; ++i) c[4 * lane + i] = sums[i];
}

enum Fault { kNone, kNoBlockBarrier, kNoWarpBarrier, kNoBarrierAfterReads, kNoWait, kGlobal, kBlocks };

// Every thread reads its neighbour's word; `fault` plants an error.
void neighbour_kernel(const float* in, float* out, int fault) {
    __shared__ float words[64];
    float* copied = reinterpret_cast<float*>(dynamic_shared());
    const int i = int(threadIdx.x);
    words[i] = in[i];
    if (fault != kNoBlockBarrier && fault != kNoWarpBarrier) __syncthreads();
    if (fault == kNoWarpBarrier) {
        out[i] = words[i ^ 1];
        return;
    }
    out[i] = words[(i + 32) % 64];
    if (fault != kNoBarrierAfterReads) __syncthreads();
    words[i] = 0;
    if (i % 4 == 0) copy_async(copied + i, in + i);
    end_copies();
    if (fault != kNoWait) wait_for_copies<0>();
    __syncthreads();
    out[i] += copied[63 - i];
    if (fault == kGlobal) out[63 - i] += 1;
    if (fault == kBlocks && i == 0) out[blockIdx.x] = 1;
}

enum ClusterFault { kNoClusterFault, kNoBarrier, kBlockBarrier, kOverwritten, kGlobalWords, kStatic };

// Every thread reads its word of the next block of its cluster; `fault` plants an error.
void next_block_kernel(const float* in, float* out, int fault) {
    __shared__ float of_all_blocks;
    float* words = reinterpret_cast<float*>(dynamic_shared());
    const unsigned i = threadIdx.x, next = (cluster_rank() + 1) % cluster_blocks();
    const unsigned here = blockIdx.x * blockDim.x + i, there = (blockIdx.x - cluster_rank() + next) * blockDim.x + i;
    words[i] = in[here];
    if (fault == kGlobalWords) out[here] = 0;
    if (fault == kStatic) {
        if (i == 0) of_all_blocks = float(cluster_rank());
        __syncthreads();
        out[here] = of_all_blocks;
    }
    if (fault == kBlockBarrier) __syncthreads();
    if (fault != kNoBarrier && fault != kBlockBarrier) wait_for_cluster();
    const float word = shared_of_block(words, next)[i];
    if (fault == kGlobalWords) wait_for_cluster();
    out[fault == kGlobalWords ? there : here] = word;
    if (fault == kGlobalWords) out[here] += 1;
    if (fault != kOverwritten) wait_for_cluster();
    words[i] = 0;
}

template <class Call>
const char* run(const Call& call) {
    static char message[300];
    try {
        call();
        return nullptr;
    } catch (const std::exception& error) {
        snprintf(message, sizeof message, "%s", error.what());
        return message;
    }
}

}  // namespace
}  // namespace sopr::cuda

using namespace sopr::cuda;

extern "C" {
#define PROBE __attribute__((visibility("default"))) const char*
PROBE tf32(const float* a, const float* b, float* out, int split) {
    return run([=] { launch_with_memory("tf32", tf32_kernel, 1, 1, 32, 1536, cudaStream_t(), a, b, out, split); });
}
PROBE bf16(const float* a, const float* b, float* out) {
    return run([=] { launch_with_memory("bf16", bf16_kernel, 1, 1, 32, 768, cudaStream_t(), a, b, out); });
}
PROBE fragments(const uint32_t* a, const uint32_t* b, float* c, int bf16) {
    return run([=] { launch_with_memory("fragments", fragments_kernel, 1, 1, 32, 0, cudaStream_t(), a, b, c, bf16); });
}
PROBE neighbour(const float* in, float* out, int fault, int blocks) {
    return run(
        [=] { launch_with_memory("neighbour", neighbour_kernel, blocks, 1, 64, 256, cudaStream_t(), in, out, fault); });
}
PROBE next_block(const float* in, float* out, int fault, int blocks, int cluster) {
    return run([=] {
        launch_in_clusters("next_block", next_block_kernel, blocks, 1, cluster, 64, 256, cudaStream_t(), in, out,
                           fault);
    });
}
}
