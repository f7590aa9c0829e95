// bf16 operands of products where the processor multiplies them: two neighbours along k in each 32-bit lane, the first
// in the low half. They travel in vectors and arrays of float.
#pragma once

#include "cpu/simd.h"

namespace sopr::SOPR_LEVEL {

#if defined(__AVX512BF16__)
constexpr bool kBf16 = true;

inline Float add_pairs(Float sum, Float a, Float b) {
    return (Float)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

// 32 values in their order.
inline Float narrow(Float first, Float second) { return (Float)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first); }

// Lane i: values i and 16 + i of a narrow vector.
inline Float zip(Float halves) {
    Short place;
    for (int i = 0; i < 32; ++i) place[i] = int16_t(i % 2 * 16 + i / 2);
    return (Float)_mm512_maskz_permutexvar_epi16(~0u, (__m512i)place, (__m512i)halves);
}
inline Float pairs(Float low, Float high) { return zip(narrow(low, high)); }

// Pairs of 16 narrow values each of two rows.
inline Float pairs(const float* low, const float* high) {
    Float both;
    std::memcpy(&both, low, sizeof both / 2);
    std::memcpy(reinterpret_cast<char*>(&both) + sizeof both / 2, high, sizeof both / 2);
    return zip(both);
}

#else
constexpr bool kBf16 = false;
inline Float add_pairs(Float sum, Float, Float) { return sum; }
#endif

}  // namespace sopr::SOPR_LEVEL
