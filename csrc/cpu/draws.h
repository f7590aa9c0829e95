// The random numbers of philox.h, one counter a lane.
#pragma once

#include "cpu/simd.h"
#include "kernels.h"
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

// Philox4x32-10 of `Count` vectors of counters at once, so that one's multiplications fill the other's waits. Only the
// low halves of the 64-bit lanes count.
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

// One site of one segment: which values it drops; none where the threshold is 0.
struct Drops {
    uint32_t seed, step, segment, place, threshold;
    float scale;

    // The draws of `columns` columns of `rows` rows, as 16-bit numbers; a row takes draws_row(columns) of them.
    void draw_rows(int64_t rows, int64_t columns, uint16_t* to) const;
    // The words of two vectors of counters.
    void words(const Word block[2], const Word row[2], Words out[2]) const {
        const Wide zero{}, c2 = zero + segment, c3 = zero + place;
        Wide c[4][4];
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
            for (int odd = 0; odd < 2; ++odd) {
                c[2 * i + odd][0] = (Wide)block[i] >> 32 * odd;
                c[2 * i + odd][1] = (Wide)row[i] >> 32 * odd;
                c[2 * i + odd][2] = c2;
                c[2 * i + odd][3] = c3;
            }
        philox<4>(c, seed, step);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 4; ++j) out[i].word[j] = (Word)((c[2 * i][j] & 0xFFFFFFFFu) | c[2 * i + 1][j] << 32);
    }
};

inline Drops drops_of(const Dropout& d, int64_t segment, uint32_t head = 0) {
    const uint32_t threshold = dropout_threshold(d.probability);
    if (!d.rng || !threshold) return {0, 0, 0, 0, 0, 1.0f};
    return {uint32_t(d.rng[0]),
            uint32_t(d.rng[1]),
            uint32_t(d.segment_base + segment),
            philox_place(d.level, d.layer, d.site, head),
            threshold,
            dropout_scale(d.probability)};
}

inline int64_t draws_row(int64_t columns) { return round_up(columns, 8); }

// x at the lanes whose draw is not below the threshold, else 0.
inline Float keep(Float x, Word draws, uint32_t threshold) { return (Float)((Int)x & (Int)(draws >= threshold)); }

inline Word lanes_from(int64_t first) {
    Word lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = uint32_t(i);
    return lane + uint32_t(first);
}

// For a vector of rows, the draws of 16 columns from one that is a multiple of 16.
struct ColumnDraws {
    Words block[2];
    ColumnDraws(const Drops& drops, int64_t row, int64_t column) {
        const Word zero{}, rows[2] = {lanes_from(row), lanes_from(row)};
        const Word blocks[2] = {zero + uint32_t(column / 8), zero + uint32_t(column / 8 + 1)};
        drops.words(blocks, rows, block);
    }
    Word of(int column) const {
        const Word w = block[column / 8].word[column % 8 / 2];
        return column % 2 ? w >> 16 : w & 0xFFFFu;
    }
};

using Half = uint16_t __attribute__((vector_size(kLanes * 2)));
inline Word load_draws(const uint16_t* from) { return __builtin_convertvector(load<Half>(from), Word); }

}  // namespace sopr::SOPR_LEVEL
