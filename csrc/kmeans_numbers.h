// Numbers of k-means that every device computes alike: powers of two that scale the data, and random draws.
#pragma once

#include <cmath>

#include "philox.h"

namespace sopr {

constexpr int kTop = 50;  // scaled magnitudes stay below 2^kTop: no square overflows, no small difference underflows

// The smallest e with magnitude < 2^e.
SOPR_INLINE int exponent_above(float magnitude) {
    int exponent = 0;
    (void)frexpf(magnitude, &exponent);
    return exponent;
}

// The power of two by which data of this magnitude is multiplied. Exact, so ratios of distances do not change.
SOPR_INLINE float scale_of(float magnitude) {
    if (magnitude == 0) return 1;
    const int shift = kTop - exponent_above(magnitude);
    return ldexpf(1, shift < 126 ? shift : 126);
}

// The power of two that turns magnitudes up to `largest` into integers whose sum over `count` values fits 63 bits.
SOPR_INLINE float integer_scale_of(float largest, int64_t count) {
    if (largest == 0) return 1;
    int bits = 0;
    while (count >> bits) ++bits;
    const int shift = 62 - bits - exponent_above(largest);
    return ldexpf(1, shift < 126 ? shift : 126);
}

// The integer nearest to x * scale * to_integer, 0 if not finite. Multiplied one by one: scale * to_integer may
// overflow.
SOPR_INLINE int64_t as_integer(float x, float scale, float to_integer) {
    const float number = rintf(x * scale * to_integer);
    return fabsf(number) < 0x1p62f ? int64_t(number) : 0;
}

struct ClusteringDraw {
    int64_t seed, restart;

    // A random integer in [0, bound) for a candidate of a round.
    SOPR_INLINE uint64_t operator()(uint64_t bound, int64_t round, int64_t candidate) const {
        const Philox4 bits = philox(uint32_t(seed), uint32_t(uint64_t(seed) >> 32), uint32_t(candidate),
                                    uint32_t(round), uint32_t(restart), philox_place(kClusteringLevel, 0, 0, 0));
        const uint64_t fraction = uint64_t(bits.word[1]) << 32 | bits.word[0];
        return uint64_t((static_cast<unsigned __int128>(fraction) * bound) >> 64);
    }
};

constexpr int kMaxCandidates = 32;

// Number of candidates in a round of greedy k-means++.
inline int candidates_of(int64_t clusters) { return 2 + int(std::log(double(clusters))); }

}  // namespace sopr
