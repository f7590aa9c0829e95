// Numbers of k-means that every device computes alike: powers of two that scale the data, sums that do not depend on
// the order, and random draws.
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

// The limit plus the rounding error of squared distances, about width / 2^24 relative.
SOPR_INLINE float with_rounding_margin(float limit, int64_t width) {
    return limit * (1 + float(width + 4) * 0x1p-20f) + 0x1p-100f;
}

constexpr int kSumLanes = 32;

// The sum over terms in an order that a warp can follow: lane i sums terms i, i + 32, …; then halves of the lanes are
// added.
inline double sum_of_lanes(double (&lanes)[kSumLanes]) {
    for (int half = kSumLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

// Squared differences from the mean of a column as integers whose sum over `count` values fits 63 bits; `to_integer` is
// that of the column. 0 if not finite.
struct VarianceUnit {
    double unit;

    SOPR_INLINE explicit VarianceUnit(int64_t count) {
        int bits = 0;
        while (count >> bits) ++bits;
        unit = ldexp(1.0, bits - 65);
    }
    SOPR_INLINE int64_t square(double difference, float to_integer) const {
        const double scaled = difference * double(to_integer);
        const double number = rint(scaled * scaled * unit);
        return fabs(number) < 0x1p62 ? int64_t(number) : 0;
    }
    SOPR_INLINE double variance(int64_t sum, float to_integer, int64_t count) const {
        return double(sum) / unit / double(to_integer) / double(to_integer) / double(count);
    }
};

struct ClusteringDraw {
    int64_t seed;

    // A random integer in [0, bound) for a candidate of a round.
    SOPR_INLINE uint64_t operator()(uint64_t bound, int64_t round, int64_t candidate) const {
        const Philox4 bits = philox(uint32_t(seed), uint32_t(uint64_t(seed) >> 32), uint32_t(candidate),
                                    uint32_t(round), 0, philox_place(kClusteringLevel, 0, 0, 0));
        const uint64_t fraction = uint64_t(bits.word[1]) << 32 | bits.word[0];
        return uint64_t((static_cast<unsigned __int128>(fraction) * bound) >> 64);
    }
};

constexpr int kMaxCandidates = 32;

// Number of candidates in a round of greedy k-means++.
inline int candidates_of(int64_t clusters) { return 2 + int(std::log(double(clusters))); }

}  // namespace sopr
