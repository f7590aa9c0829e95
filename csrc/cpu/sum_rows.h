// Pairwise sums over rows, which keep rounding errors small.
#pragma once

#include "cpu/simd.h"

namespace sopr::SOPR_LEVEL {

// sums = sum of `rows` rows of Count values, `pitch` floats apart.
template <class Value, int Count>
inline void sum_rows(const float* x, int64_t rows, int64_t pitch, Value (&sums)[Count]) {
    constexpr int64_t kRun = 128;
    for (Value& sum : sums) sum = Value{};
    if (rows > kRun) {
        Value second_half[Count];
        sum_rows(x, rows / 2, pitch, sums);
        sum_rows(x + rows / 2 * pitch, rows - rows / 2, pitch, second_half);
        for (int i = 0; i < Count; ++i) sums[i] += second_half[i];
        return;
    }
    for (int64_t t = 0; t < rows; ++t, x += pitch)
#pragma GCC unroll 4
        for (int i = 0; i < Count; ++i) sums[i] += load<Value>(x + i * sizeof(Value) / sizeof(float));
}

template <class Value, int Count>
inline void add_columns(const float* x, int64_t rows, int64_t pitch, float* to) {
    Value sums[Count];
    sum_rows(x, rows, pitch, sums);
    for (int i = 0; i < Count; ++i) {
        float* column = to + i * sizeof(Value) / sizeof(float);
        store(column, load<Value>(column) + sums[i]);
    }
}

// sum (columns) += sum of the rows of x, `pitch` floats apart.
inline void add_rows(int64_t rows, int64_t columns, int64_t pitch, const float* x, float* sum) {
    int64_t e = 0;
    for (; e + 4 * kLanes <= columns; e += 4 * kLanes) add_columns<Float, 4>(x + e, rows, pitch, sum + e);
    for (; e + kLanes <= columns; e += kLanes) add_columns<Float, 1>(x + e, rows, pitch, sum + e);
    for (; e < columns; ++e) add_columns<float, 1>(x + e, rows, pitch, sum + e);
}

// mean (columns) = mean of the rows of x, `pitch` floats apart; 0 without rows.
inline void mean_rows(int64_t rows, int64_t columns, int64_t pitch, const float* x, float* mean) {
    for (int64_t e = 0; e < columns; ++e) mean[e] = 0;
    add_rows(rows, columns, pitch, x, mean);
    const float weight = rows ? 1.0f / float(rows) : 0.0f;
    for (int64_t e = 0; e < columns; ++e) mean[e] *= weight;
}

}  // namespace sopr::SOPR_LEVEL
