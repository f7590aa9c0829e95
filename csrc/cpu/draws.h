// The random numbers of philox.h, one counter a lane.
#pragma once

#include "cpu/simd.h"
#include "philox.h"

namespace sopr::SOPR_LEVEL {

struct Words {
    Word word[4];
};

// The low halves of the 64-bit lanes, multiplied in full.
inline Wide multiply_low(Wide a, uint32_t b) {
#if defined(__AVX512F__)
    return (Wide)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
    return (Wide)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__SSE2__)
    return (Wide)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#else
    return (a & 0xFFFFFFFFu) * b;
#endif
}

// Philox4x32-10 on 64-bit lanes of which the low halves count.
inline void philox(Wide c[4], uint32_t seed, uint32_t step) {
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
        const Wide a = multiply_low(c[0], 0xD2511F53u), b = multiply_low(c[2], 0xCD9E8D57u);
        c[0] = (b >> 32) ^ c[1] ^ uint64_t(seed);
        c[1] = b;
        c[2] = (a >> 32) ^ c[3] ^ uint64_t(step);
        c[3] = a;
        seed += 0x9E3779B9u;
        step += 0xBB67AE85u;
    }
}

inline Words philox(uint32_t seed, uint32_t step, Word c0, Word c1, uint32_t c2, uint32_t c3) {
    const Wide zero{};
    Wide even[4] = {(Wide)c0, (Wide)c1, zero + c2, zero + c3};
    Wide odd[4] = {(Wide)c0 >> 32, (Wide)c1 >> 32, zero + c2, zero + c3};
    philox(even, seed, step);
    philox(odd, seed, step);
    Words words;
    for (int i = 0; i < 4; ++i) words.word[i] = (Word)((even[i] & 0xFFFFFFFFu) | odd[i] << 32);
    return words;
}

// One site of one segment: which values it drops.
struct Drops {
    uint32_t seed, step, segment, place, threshold;
    float scale;

    // The draws of `columns` columns of `rows` rows, as 16-bit numbers; a row takes draws_row(columns) of them.
    void draw_rows(int64_t rows, int64_t columns, uint16_t* to) const;
    Words words(Word block, Word row) const { return philox(seed, step, block, row, segment, place); }
};

inline int64_t draws_row(int64_t columns) { return round_up(columns, 8); }

// x at the lanes whose draw is not below the threshold, else 0.
inline Float keep(Float x, Word draws, uint32_t threshold) { return (Float)((Int)x & (Int)(draws >= threshold)); }

inline Word lanes_from(int64_t first) {
    Word lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = uint32_t(i);
    return lane + uint32_t(first);
}

inline Word draw(const Words& words, int column) {
    const Word w = words.word[column / 2];
    return column % 2 ? w >> 16 : w & 0xFFFFu;
}

using Half = uint16_t __attribute__((vector_size(kLanes * 2)));
inline Word load_draws(const uint16_t* from) { return __builtin_convertvector(load<Half>(from), Word); }

}  // namespace sopr::SOPR_LEVEL
