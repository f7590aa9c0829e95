// Products of small matrices that stay in cache: one register-tiled micro-kernel serves every product of the encoder.
#pragma once

#include "cpu/bf16.h"

namespace sopr::SOPR_LEVEL {

constexpr int kTileRows = 6;
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;
constexpr int kPanel = kTileVectors * kLanes;  // columns of a tile

// Element (i, k) is at[i * row + k * step]: either stride may be the small one, so a transpose costs nothing.
struct Left {
    const float* at;
    int64_t row, step;
};

// Rows k of kPanel columns, `step` apart; the next kPanel columns lie `panel` further. See packed() and plain().
// With `pairs`, these and Left's are pairs of bf16 along k: see bf16.h.
struct Right {
    const float* at;
    int64_t step, panel;
    bool pairs = false;
};

// The rows that a product starts from: zeros, a bias (row = 0), or the output itself to add to it.
struct Start {
    const float* at = nullptr;
    int64_t row = 0;
};

// out[i, j] = max(floor, start[i, j] + sum over k < depth of left[i, k] right[k, j]) for i < rows, j < columns.
// Whole vectors are read from `right` and `start`; with `exact` no column past `columns` is written, otherwise whole
// vectors are.
struct Product {
    int64_t rows, columns, depth;
    Left left;
    Right right;
    Start start;
    float* out;
    int64_t out_row;
    bool relu = false, exact = false;
};
void multiply(const Product&);

inline Right plain(const float* at, int64_t row) { return {at, row, kPanel}; }

// A (depth, columns) matrix in panels, element (k, j) read from at[k * row + j * step]; zero columns fill the last
// panel. In pairs it has half the depth, and a zero fills the last of an odd one.
inline int64_t depth_of(int64_t depth, bool pairs) { return pairs ? ceil_div(depth, 2) : depth; }
inline int64_t packed_size(int64_t depth, int64_t columns) { return depth * round_up(columns, kPanel); }
inline Right packed(const float* at, int64_t depth, bool pairs = false) {
    return {at, kPanel, depth_of(depth, pairs) * kPanel, pairs};
}
void pack(const float* at, int64_t row, int64_t step, int64_t depth, int64_t columns, bool pairs, float* to);

// to[c * to_row + r] = from[r * from_row + c] * scale for r < rows, c < columns. Whole vectors are read from the rows
// of `from`. With `pad`, zeros follow the rows up to a whole vector.
void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row, bool pad,
               float scale = 1.0f);

}  // namespace sopr::SOPR_LEVEL
