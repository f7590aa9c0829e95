// One vector of floats at the width of the level being compiled, by the compiler's vector extensions.
#pragma once

#include <cstdint>
#include <cstring>

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

inline Float load(const float* from) {
    Float v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
inline void store(float* to, Float v) { std::memcpy(to, &v, sizeof v); }
inline Float broadcast(float x) { return x - Float{}; }

}  // namespace sopr::SOPR_LEVEL
