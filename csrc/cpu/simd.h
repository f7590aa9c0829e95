// Vectors as wide as the level being compiled has them, by the compiler's vector extensions.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sopr::SOPR_LEVEL {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Float = float __attribute__((vector_size(kLanes * 4)));
using Int = int32_t __attribute__((vector_size(kLanes * 4)));
using Word = uint32_t __attribute__((vector_size(kLanes * 4)));
using Short = int16_t __attribute__((vector_size(kLanes * 4)));  // twice as many 16-bit lanes
using Wide = uint64_t __attribute__((vector_size(kLanes * 4)));  // half as many 64-bit lanes

template <class Vector = Float, class T>
inline Vector load(const T* from) {
    Vector v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <class T, class Vector>
inline void store(T* to, Vector v) {
    std::memcpy(to, &v, sizeof v);
}
inline void store(float* to, Float v, int64_t count) { std::memcpy(to, &v, count * sizeof(float)); }
inline Float broadcast(float x) { return x - Float{}; }
inline Float max(Float a, Float b) { return a < b ? b : a; }  // a where either is NaN

// In the level's namespace, since the linker would keep one copy of std::min for all levels.
constexpr int64_t min(int64_t a, int64_t b) { return b < a ? b : a; }
constexpr int64_t max(int64_t a, int64_t b) { return a < b ? b : a; }
constexpr int64_t ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }
constexpr int64_t round_up(int64_t n, int64_t step) { return ceil_div(n, step) * step; }

// Lane i of the result is lane i ^ Flip of v.
template <int Flip, int... I>
inline Float flip(Float v, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(v, v, (I ^ Flip)...);
}
template <int Flip>
inline Float flip(Float v) {
    return flip<Flip>(v, std::make_integer_sequence<int, kLanes>{});
}

// One half of a butterfly step: of a and b, the lanes whose number has bit `Bit` clear (High = 0) or set (High = 1).
// Those of a go to places with the bit clear, those of b to places with it set.
template <int Bit, int High, class Vector, int... I>
inline Vector exchange(Vector a, Vector b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b,
                                   (High ? (I & Bit ? kLanes + I : I | Bit) : (I & Bit ? kLanes + (I & ~Bit) : I))...);
}

// A step of a transpose of `Count` vectors in squares of Count lanes: steps of bits 1, 2, … below Count transpose them.
template <int Bit, int Count, class Vector>
inline void exchange(Vector* v) {
    if constexpr (Bit < kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < Count; ++i) {
            if (i & Bit) continue;
            const Vector a = v[i], b = v[i | Bit];
            v[i] = exchange<Bit, 0>(a, b, std::make_integer_sequence<int, kLanes>{});
            v[i | Bit] = exchange<Bit, 1>(a, b, std::make_integer_sequence<int, kLanes>{});
        }
    }
}

inline float sum(Float v) {
    if constexpr (kLanes > 8) v += flip<8 % kLanes>(v);
    if constexpr (kLanes > 4) v += flip<4 % kLanes>(v);
    v += flip<2>(v);
    v += flip<1>(v);
    return v[0];
}

inline float largest(Float v) {
    if constexpr (kLanes > 8) v = max(v, flip<8 % kLanes>(v));
    if constexpr (kLanes > 4) v = max(v, flip<4 % kLanes>(v));
    v = max(v, flip<2>(v));
    v = max(v, flip<1>(v));
    return v[0];
}

// 2^x for x <= 0, relative error below 2e-7 down to 2^-126, 0 far below.
inline Float exp2_nonpositive(Float x) {
#if defined(__AVX512F__)
    x = max(x, broadcast(-151.0f));  // the hardware handles subnormal results
    const Float whole = (Float)_mm512_maskz_roundscale_ps(0xFFFF, (__m512)x, 0);
    const Float r = x - whole;
#else
    x = max(x, broadcast(-127.0f));
    const Float shifted = x + 12582912.0f;  // 1.5 * 2^23 leaves the nearest integer in the low bits
    const Float r = x - (shifted - 12582912.0f);
#endif
    Float y = r * 1.32647285e-3f + 9.67151299e-3f;
    y = y * r + 5.55073358e-2f;
    y = y * r + 2.40222424e-1f;
    y = y * r + 6.93147004e-1f;
    y = y * r + 1.0f;
#if defined(__AVX512F__)
    return (Float)_mm512_maskz_scalef_ps(0xFFFF, (__m512)y, (__m512)whole);
#else
    return y * (Float)(((Int)shifted << 23) + 0x3F800000);
#endif
}

}  // namespace sopr::SOPR_LEVEL
