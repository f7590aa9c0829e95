// Activations as operands of products: themselves, or in pairs of bf16 in a buffer.
#pragma once

#include "cpu/product.h"

namespace sopr::SOPR_LEVEL {

// Matrices are (rows, columns), rows `pitch` apart and padded with zeros to whole vectors. A buffer takes
// pairs_size(rows, columns) floats.
struct Operands {
    bool pairs;

    int64_t depth(int64_t k) const { return depth_of(k, pairs); }

    // x as the left operand with k along its columns, or along its rows; and as the right one.
    Left by_columns(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* buffer) const;
    Left by_rows(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* buffer) const;
    Right right(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* buffer) const;

    // The operand from element (i, k) or (k, j) on; k is even.
    Left from(Left l, int64_t i, int64_t k) const { return {l.at + i * l.row + depth(k) * l.step, l.row, l.step}; }
    Right from(Right r, int64_t k, int64_t j) const { return {r.at + depth(k) * r.step + j, r.step, r.panel, r.pairs}; }
};

inline int64_t pairs_size(int64_t rows, int64_t columns) { return ceil_div(rows, 2) * round_up(columns, 2 * kLanes); }

}  // namespace sopr::SOPR_LEVEL
