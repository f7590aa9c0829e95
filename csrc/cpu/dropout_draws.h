// The random numbers of philox.h, computed with one counter per lane.
#pragma once

#include "cpu/simd.h"
#include "dropout_site.h"

namespace sopr::SOPR_LEVEL {

struct Words {
    Word word[4];
};

// Full 64-bit products of the low halves of 64-bit lanes.
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

// Philox4x32-10 of `Count` vectors of counters, interleaved to hide the latency of multiplications. Only the low halves
// of the 64-bit lanes matter.
template <int Count>
inline void philox(Wide (*c)[4], uint32_t seed, uint32_t step) {
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
        for (int i = 0; i < Count; ++i) {
            const Wide a = multiply_low(c[i][0], 0xD2511F53u), b = multiply_low(c[i][2], 0xCD9E8D57u);
            c[i][0] = (b >> 32) ^ c[i][1] ^ uint64_t(seed);
            c[i][1] = b;
            c[i][2] = (a >> 32) ^ c[i][3] ^ uint64_t(step);
            c[i][3] = a;
        }
        seed += 0x9E3779B9u;
        step += 0xBB67AE85u;
    }
}

// The words of two vectors of counters (block, row).
inline void draw_words(const DropoutSite& site, const Word block[2], const Word row[2], Words out[2]) {
    const Wide zero{}, c2 = zero + site.segment, c3 = zero + site.place;
    Wide c[4][4];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
        for (int odd = 0; odd < 2; ++odd) {
            c[2 * i + odd][0] = (Wide)block[i] >> 32 * odd;
            c[2 * i + odd][1] = (Wide)row[i] >> 32 * odd;
            c[2 * i + odd][2] = c2;
            c[2 * i + odd][3] = c3;
        }
    philox<4>(c, site.seed, site.step);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) out[i].word[j] = (Word)((c[2 * i][j] & 0xFFFFFFFFu) | c[2 * i + 1][j] << 32);
}

// The draws of `rows` rows as 16-bit numbers, draws_pitch(columns) of them per row.
void draw_rows(const DropoutSite& site, int64_t rows, int64_t columns, uint16_t* draws);

inline int64_t draws_pitch(int64_t columns) { return round_up(columns, 8); }

// x in lanes whose draw reaches the threshold, else 0.
inline Float keep(Float x, Word draws, uint32_t threshold) { return (Float)((Int)x & (Int)(draws >= threshold)); }

// first, first + 1, …
inline Word lanes_from(int64_t first) {
    Word lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = uint32_t(i);
    return lane + uint32_t(first);
}

// The draws of columns column : column + 16 in a vector of rows; `column` is a multiple of 16.
struct ColumnDraws {
    Words block[2];
    ColumnDraws(const DropoutSite& site, int64_t row, int64_t column) {
        const Word zero{}, rows[2] = {lanes_from(row), lanes_from(row)};
        const Word blocks[2] = {zero + uint32_t(column / 8), zero + uint32_t(column / 8 + 1)};
        draw_words(site, blocks, rows, block);
    }
    Word operator[](int column) const {
        const Word w = block[column / 8].word[column % 8 / 2];
        return column % 2 ? w >> 16 : w & 0xFFFFu;
    }
};

using Half = uint16_t __attribute__((vector_size(kLanes * 2)));
inline Word load_draws(const uint16_t* from) { return __builtin_convertvector(load<Half>(from), Word); }

}  // namespace sopr::SOPR_LEVEL
