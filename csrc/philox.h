// Random numbers of dropout and k-means: the same on every device, instruction set, layout and number of threads.
//
// Philox4x32-10. Key: (seed mod 2^32, step mod 2^32). Counter:
//   word 0  column / 8                     (feature, or key position in its segment)
//   word 1  row in its segment
//   word 2  segment number, mod 2^32       (over policies, subsets and clusters: ((p * S) + s) * K + k)
//   word 3  level << 24 | layer << 16 | site << 12 | head
// The 128 bits hold eight 16-bit draws: column % 8 = 2 i + j takes the low (j = 0) or high (j = 1) half of word i.
// A value is dropped if its draw is below threshold = round(65536 p), else multiplied by 65536 / (65536 - threshold).
//
// k-means draws 64 bits (words 1 and 0). Key: (seed mod 2^32, seed / 2^32). Counter: (candidate, round, 0,
// clustering level << 24), where round r chooses centroid r.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define SOPR_INLINE __host__ __device__ inline
#else
#define SOPR_INLINE inline
#endif

namespace sopr {

enum Site : uint32_t { kAttentionWeights = 0, kAfterAttention = 1, kInsideFeedForward = 2, kAfterFeedForward = 3 };

constexpr uint32_t kClusteringLevel = 255;

struct Philox4 {
    uint32_t word[4];
};

SOPR_INLINE uint32_t philox_place(uint32_t level, uint32_t layer, uint32_t site, uint32_t head) {
    return level << 24 | layer << 16 | site << 12 | head;
}

SOPR_INLINE Philox4 philox(uint32_t seed, uint32_t step, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t(0xD2511F53u) * c0, b = uint64_t(0xCD9E8D57u) * c2;
        c0 = uint32_t(b >> 32) ^ c1 ^ seed;
        c1 = uint32_t(b);
        c2 = uint32_t(a >> 32) ^ c3 ^ step;
        c3 = uint32_t(a);
        seed += 0x9E3779B9u;
        step += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

SOPR_INLINE uint32_t dropout_threshold(float probability) { return uint32_t(probability * 65536.0f + 0.5f); }

// 0 if the threshold drops everything.
SOPR_INLINE float dropout_scale(float probability) {
    const uint32_t threshold = dropout_threshold(probability);
    return threshold < 65536 ? 65536.0f / float(65536u - threshold) : 0.0f;
}

SOPR_INLINE uint32_t philox_draw(const Philox4& bits, uint32_t column) {
    return bits.word[column / 2 % 4] >> (column % 2 * 16) & 0xFFFFu;
}

}  // namespace sopr
