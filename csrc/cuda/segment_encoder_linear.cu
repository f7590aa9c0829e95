// A block computes kRows rows by kColumns outputs, a thread kRowsEach by kColumnsEach of them, from tiles of kDepth
// inputs in shared memory. Every output sums its inputs in order.
#include "cuda/launch.h"
#include "cuda/segment_encoder_linear.h"
#include "philox.h"

namespace sopr::cuda {
namespace {

constexpr int kSide = 16, kThreads = kSide * kSide;
constexpr int kRowsEach = 8, kColumnsEach = 4;
constexpr int kRows = kSide * kRowsEach, kColumns = kSide * kColumnsEach, kDepth = 32;

SOPR_INLINE constexpr int pitch(int rows) { return rows + 1; }  // +1 avoids bank conflicts

// tile (kDepth, pitch(kCount)) = x[row : row + kCount, column : column + kDepth], transposed; zeros outside of x.
template <int kCount>
__device__ void load_transposed(const float* x, int64_t rows, int64_t columns, int64_t row, int64_t column,
                                float* tile) {
    for (int i = threadIdx.x; i < kCount * kDepth; i += kThreads) {
        const int r = i / kDepth, c = i % kDepth;
        const bool inside = row + r < rows && column + c < columns;
        tile[c * pitch(kCount) + r] = inside ? x[(row + r) * columns + column + c] : 0.0f;
    }
}

__global__ void __launch_bounds__(kThreads, 2) linear_kernel(Linear p) {
    __shared__ float in[kDepth * pitch(kRows)], weight[kDepth * pitch(kColumns)];
    const int64_t row = int64_t(blockIdx.x) * kRows, column = int64_t(blockIdx.y) * kColumns;
    const int my_row = threadIdx.x / kSide, my_column = threadIdx.x % kSide;
    float sums[kRowsEach][kColumnsEach] = {};
    for (int64_t depth = 0; depth < p.inputs; depth += kDepth) {
        __syncthreads();
        load_transposed<kRows>(p.in, p.rows, p.inputs, row, depth, in);
        load_transposed<kColumns>(p.weight, p.outputs, p.inputs, column, depth, weight);
        __syncthreads();
        for (int d = 0; d < kDepth; ++d) {
            float x[kRowsEach], w[kColumnsEach];
#pragma unroll
            for (int i = 0; i < kRowsEach; ++i) x[i] = in[d * pitch(kRows) + my_row + i * kSide];
#pragma unroll
            for (int j = 0; j < kColumnsEach; ++j) w[j] = weight[d * pitch(kColumns) + my_column + j * kSide];
#pragma unroll
            for (int i = 0; i < kRowsEach; ++i)
#pragma unroll
                for (int j = 0; j < kColumnsEach; ++j) sums[i][j] = fmaf(x[i], w[j], sums[i][j]);
        }
    }
#pragma unroll
    for (int j = 0; j < kColumnsEach; ++j) {
        const int64_t c = column + my_column + j * kSide;
        if (c >= p.outputs) continue;
        const float bias = p.bias[c];
        float* const out = p.out + c / p.width * p.rows * p.width + c % p.width;
#pragma unroll
        for (int i = 0; i < kRowsEach; ++i) {
            const int64_t r = row + my_row + i * kSide;
            const float value = sums[i][j] + bias;
            if (r < p.rows) out[r * p.width] = p.relu && value < 0 ? 0.0f : value;  // keeps NaN
        }
    }
}

}  // namespace

void linear(const Linear& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    launch("linear", linear_kernel, (p.rows + kRows - 1) / kRows, (p.outputs + kColumns - 1) / kColumns, kThreads,
           stream, p);
}

}  // namespace sopr::cuda
