// Products of small matrices in cache: one register-tiled kernel computes every product of the encoder.
#pragma once

#include "cpu/bf16.h"

namespace sopr::SOPR_LEVEL {

constexpr int kTileRows = 6;
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;
constexpr int kPanel = kTileVectors * kLanes;  // columns of a tile

// Element (i, k) is data[i * row + k * step]. Either stride may be 1, so a transposed operand needs no copy.
struct Left {
    const float* data;
    int64_t row, step;
};

// Panels of kPanel columns, `panel` apart; rows k of a panel are `step` apart. See packed() and plain(). With `pairs`,
// the elements of both operands are pairs of bf16 along k: see bf16.h.
struct Right {
    const float* data;
    int64_t step, panel;
    bool pairs = false;
};

// Initial value of the output: zero (null), a bias of the columns (row = 0), or the output itself; if `of_rows`, one
// value a row, `row` apart.
struct Start {
    const float* data = nullptr;
    int64_t row = 0;
    bool of_rows = false;
};

// out[i, j] = start[i, j] + sum over k < depth of left[i, k] * right[k, j] for i < rows, j < columns; then ReLU if
// `relu`. Reads whole vectors of `right` and `start`. Writes whole vectors of `out` unless `exact`. Returns early if
// the kernel call is cancelled. Meanwhile arrays `ahead`, which the caller uses next, come from memory into the cache.
struct Product {
    int64_t rows, columns, depth;
    Left left;
    Right right;
    Start start;
    float* out;
    int64_t out_row;
    bool relu = false, exact = false;
    const float* ahead[4] = {};  // of rows * columns floats each, or null
};
void multiply(const Product&);

// A row-major matrix as it is.
inline Right plain(const float* data, int64_t row) { return {data, row, kPanel}; }

// A (depth, columns) matrix in panels, the last one padded with zero columns. As pairs it has half the depth, padded
// with a zero row if the depth is odd. pack() reads element (k, j) from data[k * row + j * step].
inline int64_t depth_of(int64_t depth, bool pairs) { return pairs ? ceil_div(depth, 2) : depth; }
inline int64_t packed_size(int64_t depth, int64_t columns) { return depth * round_up(columns, kPanel); }
inline Right packed(const float* data, int64_t depth, bool pairs = false) {
    return {data, kPanel, depth_of(depth, pairs) * kPanel, pairs};
}
void pack(const float* data, int64_t row, int64_t step, int64_t depth, int64_t columns, bool pairs, float* to);

// to[c * to_row + r] = from[r * from_row + c] * scale for r < rows, c < columns. Reads whole vectors of `from`. With
// `pad`, zeros fill the last vector of each row of `to`.
void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row, bool pad,
               float scale = 1.0f);

}  // namespace sopr::SOPR_LEVEL
