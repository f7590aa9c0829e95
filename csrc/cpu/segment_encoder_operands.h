// Activations as operands of products: in place as fp32, or copied to a buffer as pairs of bf16.
#pragma once

#include "cpu/product.h"

namespace sopr::SOPR_LEVEL {

// Matrices are (rows, columns); rows are `pitch` apart and padded with zeros to whole vectors. A buffer holds
// pairs_size(rows, columns) floats.
struct Operands {
    bool pairs;

    int64_t depth(int64_t k) const { return depth_of(k, pairs); }

    // x as left operand with k along its columns or its rows, and as right operand.
    Left by_columns(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* buffer) const;
    Left by_rows(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* buffer) const;
    Right right(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* buffer) const;

    // The part of an operand from element (i, k) or (k, j) on; k is even.
    Left from(Left l, int64_t i, int64_t k) const { return {l.data + i * l.row + depth(k) * l.step, l.row, l.step}; }
    Right from(Right r, int64_t k, int64_t j) const {
        return {r.data + depth(k) * r.step + j, r.step, r.panel, r.pairs};
    }
};

inline int64_t pairs_size(int64_t rows, int64_t columns) { return ceil_div(rows, 2) * round_up(columns, 2 * kLanes); }

}  // namespace sopr::SOPR_LEVEL
