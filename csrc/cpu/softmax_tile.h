// Softmax of attention on tiles of scores (keys, kPanel), exponents of 2. Lanes hold queries, so no sum runs across
// lanes.
#pragma once

#include "cpu/dropout_draws.h"
#include "cpu/product.h"

namespace sopr::SOPR_LEVEL {

constexpr int64_t kKeys = 128;  // keys of a tile, a multiple of 16
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLowest = -__FLT_MAX__;  // initial maximum: with -inf, a score of -inf would give NaN
inline int64_t tokens_pitch(int64_t length) { return round_up(length, kLanes); }

// The queries of a segment, divided into blocks of similar size and at most kTileVectors vectors.
struct QueryBlocks {
    int64_t length, vectors, count;
    explicit QueryBlocks(int64_t length) : length(length), vectors(tokens_pitch(length) / kLanes) {
        count = ceil_div(vectors, kTileVectors);
    }
    int64_t begin(int64_t block) const { return vectors * block / count * kLanes; }
    int64_t padded(int64_t block) const { return begin(block + 1) - begin(block); }
    int64_t size(int64_t block) const { return (block + 1 < count ? begin(block + 1) : length) - begin(block); }
};

inline Float largest(const float* scores, int64_t keys) {
    const Float lowest = broadcast(-__builtin_inff());
    Float a = lowest, b = lowest, c = lowest, d = lowest;
    int64_t k = 0;
    for (; k + 4 <= keys; k += 4) {
        a = max(a, load(scores + k * kPanel));
        b = max(b, load(scores + (k + 1) * kPanel));
        c = max(c, load(scores + (k + 2) * kPanel));
        d = max(d, load(scores + (k + 3) * kPanel));
    }
    for (; k < keys; ++k) a = max(a, load(scores + k * kPanel));
    return max(max(a, b), max(c, d));
}

// scores = 2^(scores - maximum) for one vector of queries; returns their sum over keys.
inline Float exponentials(float* scores, int64_t keys, Float maximum) {
    Float total{};
    for (int64_t k = 0; k < keys; ++k) {
        const Float p = exp2_nonpositive(load(scores + k * kPanel) - maximum);
        total += p;
        store(scores + k * kPanel, p);
    }
    return total;
}

// body(k, draws of key first + k) for every key of a tile; `first` is a multiple of 16. Without dropout, draws are 0.
template <class Body>
inline void for_draws(int64_t keys, const DropoutSite& site, int64_t query, int64_t first, Body&& body) {
    if (!site.threshold)
        for (int64_t k = 0; k < keys; ++k) body(k, Word{});
    for (int64_t k = 0; site.threshold && k < keys; k += 16) {
        const ColumnDraws draws(site, query, first + k);
        if (keys - k >= 16) {
#pragma GCC unroll 16
            for (int i = 0; i < 16; ++i) body(k + i, draws[i]);
        } else {
            for (int i = 0; i < keys - k; ++i) body(k + i, draws[i]);
        }
    }
}

// Zero the dropped attention weights.
inline void drop(float* weights, int64_t keys, const DropoutSite& site, int64_t query, int64_t first) {
    for_draws(keys, site, query, first, [&](int64_t k, Word draw) {
        store(weights + k * kPanel, keep(load(weights + k * kPanel), draw, site.threshold));
    });
}

// For one vector of queries: scores become the weights after dropout, grads (of those weights) become gradients of the
// scores. `mean` is the sum over keys of weight * gradient.
inline void softmax_backward(float* scores, float* grads, int64_t keys, Float maximum, Float inverse, Float mean,
                             const DropoutSite& site, int64_t query, int64_t first) {
    for_draws(keys, site, query, first, [&](int64_t k, Word draw) {
        float *score = scores + k * kPanel, *grad = grads + k * kPanel;
        const Float p = exp2_nonpositive(load(score) - maximum) * inverse;
        store(score, keep(p * site.scale, draw, site.threshold));
        store(grad, p * (keep(load(grad) * site.scale, draw, site.threshold) - mean));
    });
}

}  // namespace sopr::SOPR_LEVEL
