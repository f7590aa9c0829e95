// Attention inside segments, a query at a time: keys and values of one segment and head are kept transposed, so that
// neighbouring lanes hold neighbouring keys, and a query needs one row of weights whatever the segment's length.
#include "cpu/dropout_row.h"
#include "cpu/pool.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/table.h"

namespace sopr::SOPR_LEVEL {
namespace {

constexpr float kLog2E = 1.44269504f;

int64_t longest_segment(const SegmentAttention& p) {
    int64_t longest = 0;
    for (int64_t g = 0; g < p.segments; ++g) {
        const int64_t length = p.offsets[g + 1] - p.offsets[g];
        if (length > longest) longest = length;
    }
    return longest;
}

// One segment and head of (T, H, D) arrays.
struct Head {
    const SegmentAttention& p;
    int64_t segment, head, begin, length, padded;

    Head(const SegmentAttention& p, int64_t item)
        : p(p),
          segment(item / p.heads),
          head(item % p.heads),
          begin(p.offsets[segment]),
          length(p.offsets[segment + 1] - begin),
          padded(round_up(length, kLanes)) {}

    int64_t at(int64_t row) const { return ((begin + row) * p.heads + head) * p.dim; }
    int64_t row_at(int64_t row) const { return (begin + row) * p.heads + head; }

    // to (D, padded) from rows of x, zero in the padding.
    void transpose(const float* x, float* to) const {
        for (int64_t d = 0; d < p.dim; ++d) {
            for (int64_t j = 0; j < length; ++j) to[d * padded + j] = x[at(j) + d];
            for (int64_t j = length; j < padded; ++j) to[d * padded + j] = 0;
        }
    }
    void transpose_back(const float* from, float* x) const {
        for (int64_t j = 0; j < length; ++j)
            for (int64_t d = 0; d < p.dim; ++d) x[at(j) + d] = from[d * padded + j];
    }

    // row[j] = factor * sum over d of x[d] * columns[d, j]
    void product(const float* x, const float* columns, float factor, float* row) const {
        for (int64_t j = 0; j < padded; j += kLanes) {
            Float sum{};
            for (int64_t d = 0; d < p.dim; ++d) sum += x[d] * load(columns + d * padded + j);
            store(row + j, sum * factor);
        }
    }
    float dot(const float* row, const float* column) const {
        Float total{};
        for (int64_t j = 0; j < padded; j += kLanes) total += load(row + j) * load(column + j);
        return sum(total);
    }
    // columns[d, j] += factor * x[d] * row[j]
    void add_outer(const float* x, float factor, const float* row, float* columns) const {
        for (int64_t d = 0; d < p.dim; ++d) {
            float* column = columns + d * padded;
            for (int64_t j = 0; j < padded; j += kLanes)
                store(column + j, load(column + j) + factor * x[d] * load(row + j));
        }
    }
};

// The weights of query `i`, padding 0; multiplied by nothing yet. Returns log2 of the sum of exponentials.
float softmax(const Head& h, int64_t i, const float* keys, float* weights) {
    h.product(h.p.q + h.at(i), keys, h.p.scale * kLog2E, weights);
    float largest = weights[0];
    for (int64_t j = 1; j < h.length; ++j) largest = weights[j] > largest ? weights[j] : largest;
    Float total{};
    for (int64_t j = 0; j < h.padded; j += kLanes) {
        Float e = exp2_nonpositive(load(weights + j) - largest);
        if (j + kLanes > h.length)
            for (int64_t lane = h.length - j; lane < kLanes; ++lane) e[lane] = 0;
        store(weights + j, e);
        total += e;
    }
    const float all = sum(total);
    for (int64_t j = 0; j < h.padded; j += kLanes) store(weights + j, load(weights + j) / all);
    return largest + __builtin_log2f(all);
}

// The weights again, from what the forward pass kept.
void softmax_again(const Head& h, int64_t i, const float* keys, float* weights) {
    h.product(h.p.q + h.at(i), keys, h.p.scale * kLog2E, weights);
    const float log2_sum = h.p.log2_sum[h.row_at(i)];
    for (int64_t j = 0; j < h.padded; j += kLanes) {
        Float e = exp2_nonpositive(load(weights + j) - log2_sum);
        if (j + kLanes > h.length)
            for (int64_t lane = h.length - j; lane < kLanes; ++lane) e[lane] = 0;
        store(weights + j, e);
    }
}

void multiply(float* row, const float* by, int64_t count) {
    for (int64_t j = 0; j < count; ++j) row[j] *= by[j];
}

}  // namespace

void segment_attention(const SegmentAttention& p, int threads) {
    const size_t padded = size_t(round_up(longest_segment(p), kLanes)), dim = size_t(p.dim);
    const auto bytes = [](size_t floats) { return (floats * sizeof(float) + 63) / 64 * 64; };
    const Scratch scratch(2 * bytes(dim * padded) + 2 * bytes(padded), threads);
    parallel_for(p.segments * p.heads, threads, [&](int64_t item, int worker) {
        Arrays memory = scratch.piece(worker);
        float *keys = memory.take<float>(dim * padded), *values = memory.take<float>(dim * padded);
        float *weights = memory.take<float>(padded), *multipliers = memory.take<float>(padded);
        const Head h(p, item);
        h.transpose(p.k, keys);
        h.transpose(p.v, values);
        for (int64_t i = 0; i < h.length; ++i) {
            p.log2_sum[h.row_at(i)] = softmax(h, i, keys, weights);
            if (drops(p.dropout)) {
                dropout_row(p.dropout, h.segment, i, h.head, h.length, multipliers);
                multiply(weights, multipliers, h.length);
            }
            for (int64_t d = 0; d < p.dim; ++d) p.out[h.at(i) + d] = h.dot(weights, values + d * h.padded);
        }
    });
}

void segment_attention_backward(const SegmentAttentionBackward& b, int threads) {
    const SegmentAttention& p = b.forward;
    const size_t padded = size_t(round_up(longest_segment(p), kLanes)), dim = size_t(p.dim);
    const auto bytes = [](size_t floats) { return (floats * sizeof(float) + 63) / 64 * 64; };
    const Scratch scratch(4 * bytes(dim * padded) + 3 * bytes(padded), threads);
    parallel_for(p.segments * p.heads, threads, [&](int64_t item, int worker) {
        Arrays memory = scratch.piece(worker);
        float *keys = memory.take<float>(dim * padded), *values = memory.take<float>(dim * padded);
        float *grad_keys = memory.take<float>(dim * padded), *grad_values = memory.take<float>(dim * padded);
        float *weights = memory.take<float>(padded), *grads = memory.take<float>(padded);
        float* multipliers = memory.take<float>(padded);
        const Head h(p, item);
        h.transpose(p.k, keys);
        h.transpose(p.v, values);
        for (int64_t j = 0; j < p.dim * h.padded; ++j) grad_keys[j] = grad_values[j] = 0;
        for (int64_t i = 0; i < h.length; ++i) {
            const float *grad = b.grad_out + h.at(i), *out = p.out + h.at(i);
            softmax_again(h, i, keys, weights);
            h.product(grad, values, 1, grads);  // of the weights after dropout
            float own = 0;
            for (int64_t d = 0; d < p.dim; ++d) own += grad[d] * out[d];
            if (drops(p.dropout)) {
                dropout_row(p.dropout, h.segment, i, h.head, h.length, multipliers);
                multiply(grads, multipliers, h.length);
            }
            for (int64_t j = 0; j < h.padded; j += kLanes)
                store(grads + j, load(weights + j) * (load(grads + j) - own));
            for (int64_t d = 0; d < p.dim; ++d) b.grad_q[h.at(i) + d] = p.scale * h.dot(grads, keys + d * h.padded);
            h.add_outer(p.q + h.at(i), p.scale, grads, grad_keys);
            if (drops(p.dropout)) multiply(weights, multipliers, h.length);
            h.add_outer(grad, 1, weights, grad_values);
        }
        h.transpose_back(grad_keys, b.grad_k);
        h.transpose_back(grad_values, b.grad_v);
    });
}

}  // namespace sopr::SOPR_LEVEL
