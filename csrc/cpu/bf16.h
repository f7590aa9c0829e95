// bf16 operands of products, where the processor supports them. A 32-bit lane holds two neighbours along k, the first
// in the low half; vectors and arrays of float carry such pairs.
#pragma once

#include "cpu/simd.h"

namespace sopr::SOPR_LEVEL {

#if defined(__AVX512BF16__)
constexpr bool kBf16 = true;

inline Float add_pairs(Float sum, Float a, Float b) {
    return (Float)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

// Pairs lanes 2 i and 2 i + 1 of first, then of second.
inline Float pair_lanes(Float first, Float second) { return (Float)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first); }

// Pairs lane i of low with lane i of high.
inline Float pair_vectors(Float low, Float high) {
    Short place;
    for (int i = 0; i < 2 * kLanes; ++i) place[i] = int16_t(i % 2 * kLanes + i / 2);
    const Float both = pair_lanes(low, high);
    return (Float)_mm512_maskz_permutexvar_epi16(~0u, (__m512i)place, (__m512i)both);
}
#else  // kBf16 guards every call
constexpr bool kBf16 = false;
inline Float add_pairs(Float sum, Float, Float) { return sum; }
inline Float pair_lanes(Float first, Float) { return first; }
inline Float pair_vectors(Float low, Float) { return low; }
#endif

}  // namespace sopr::SOPR_LEVEL
