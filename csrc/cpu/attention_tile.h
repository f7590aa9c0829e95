// The softmax of attention on tiles of scores, (keys, kPanel): queries lie in the lanes, so no sum runs across lanes.
// Scores are exponents of 2, or of e where kNatural: then huge ones lose less, since differences are scaled, not
// scores.
#pragma once

#include "cpu/draws.h"
#include "cpu/product.h"

namespace sopr::SOPR_LEVEL {

constexpr int64_t kKeys = 128;  // keys of a tile, a multiple of 8
inline int64_t tokens_pitch(int64_t length) { return round_up(length, kLanes); }

// The queries of a segment in blocks of at most kTileVectors vectors, all about as large.
struct Blocks {
    int64_t length, vectors, count;
    explicit Blocks(int64_t length) : length(length), vectors(tokens_pitch(length) / kLanes) {
        count = (vectors + kTileVectors - 1) / kTileVectors;
    }
    int64_t begin(int64_t block) const { return vectors * block / count * kLanes; }
    int64_t padded(int64_t block) const { return begin(block + 1) - begin(block); }
    int64_t real(int64_t block) const { return (block + 1 < count ? begin(block + 1) : length) - begin(block); }
};

template <bool kNatural>
inline Float exponential(Float x) {
    return exp2_nonpositive(kNatural ? x * 1.44269504f : x);
}

inline Float largest(const float* scores, int64_t keys) {
    Float m[4];
    for (Float& v : m) v = broadcast(-__builtin_inff());
    for (int64_t k = 0; k < keys; ++k) m[k % 4] = max(m[k % 4], load(scores + k * kPanel));
    return max(max(m[0], m[1]), max(m[2], m[3]));
}

// scores = exponentials of scores - top, for one vector of queries; returns their sum.
template <bool kNatural = false>
inline Float exponentials(float* scores, int64_t keys, Float top) {
    Float total{};
    for (int64_t k = 0; k < keys; ++k) {
        const Float p = exponential<kNatural>(load(scores + k * kPanel) - top);
        total += p;
        store(scores + k * kPanel, p);
    }
    return total;
}

// Zeros where attention weights are dropped; key `first` is a multiple of 8.
inline void drop(float* weights, int64_t keys, const Drops& drops, int64_t query, int64_t first) {
    for (int64_t k = 0; k < keys; k += 8) {
        const Words words = drops.words(Word{} + uint32_t((first + k) / 8), lanes_from(query));
        for (int i = 0; i < 8 && k + i < keys; ++i) {
            float* at = weights + (k + i) * kPanel;
            store(at, keep(load(at), draw(words, i), drops.threshold));
        }
    }
}

// From scores and the gradients of the weights after dropout to those weights and the gradients of the scores,
// for one vector of queries. `mean` is the sum over keys of weight times gradient.
template <bool kNatural = false>
inline void softmax_backward(float* scores, float* grads, int64_t keys, Float top, Float inverse, Float mean) {
    for (int64_t k = 0; k < keys; ++k) {
        const Float p = exponential<kNatural>(load(scores + k * kPanel) - top) * inverse;
        store(scores + k * kPanel, p);
        store(grads + k * kPanel, p * (load(grads + k * kPanel) - mean));
    }
}

template <bool kNatural = false>
inline void softmax_backward(float* scores, float* grads, int64_t keys, Float top, Float inverse, Float mean,
                             const Drops& drops, int64_t query, int64_t first) {
    for (int64_t k = 0; k < keys; k += 8) {
        const Words words = drops.words(Word{} + uint32_t((first + k) / 8), lanes_from(query));
        for (int i = 0; i < 8 && k + i < keys; ++i) {
            float *score = scores + (k + i) * kPanel, *grad = grads + (k + i) * kPanel;
            const Float p = exponential<kNatural>(load(score) - top) * inverse;
            const Word bits = draw(words, i);
            store(score, keep(p * drops.scale, bits, drops.threshold));
            store(grad, p * (keep(load(grad) * drops.scale, bits, drops.threshold) - mean));
        }
    }
}

}  // namespace sopr::SOPR_LEVEL
