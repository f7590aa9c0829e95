#include "cpu/dropout_draws.h"

namespace sopr::SOPR_LEVEL {
namespace {

// Steps of a 4 x 4 transpose of words inside each quarter of four vectors: pairs, then halves.
template <int... I>
Word low_pairs(Word a, Word b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, ((I & ~3) + (I & 3) / 2 + (I & 1 ? kLanes : 0))...);
}
template <int... I>
Word high_pairs(Word a, Word b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, ((I & ~3) + 2 + (I & 3) / 2 + (I & 1 ? kLanes : 0))...);
}
template <int High, int... I>
Word halves(Word a, Word b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, ((I & ~3) + 2 * High + (I & 1) + (I & 2 ? kLanes : 0))...);
}

}  // namespace

// Counters run along the blocks of 8 columns of a row, then to the next row. Lane 4 b + i takes counter
// i * kLanes / 4 + b, so that the 4 x 4 transposes put the words of whole counters in order.
void draw_rows(const DropoutSite& site, int64_t rows, int64_t columns, uint16_t* to) {
    constexpr auto all = std::make_integer_sequence<int, kLanes>{};
    if (!columns) return;
    const uint32_t blocks = uint32_t(draws_pitch(columns) / 8);
    Word block[2], row[2];
    for (uint32_t i = 0; i < 2; ++i)
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            const uint32_t counter = i * kLanes + lane % 4 * (kLanes / 4) + lane / 4;
            block[i][lane] = counter % blocks;
            row[i][lane] = counter / blocks;
        }
    const uint32_t next_block = 2 * kLanes % blocks, next_row = 2 * kLanes / blocks;
    for (int64_t left = rows * blocks * 8; left > 0; left -= 16 * kLanes, to += 16 * kLanes) {
        Words w[2];
        draw_words(site, block, row, w);
        Word out[8];
        for (int i = 0; i < 2; ++i) {
            const Word* v = w[i].word;
            const Word a = low_pairs(v[0], v[1], all), b = high_pairs(v[0], v[1], all);
            const Word c = low_pairs(v[2], v[3], all), d = high_pairs(v[2], v[3], all);
            out[4 * i] = halves<0>(a, c, all);
            out[4 * i + 1] = halves<1>(a, c, all);
            out[4 * i + 2] = halves<0>(b, d, all);
            out[4 * i + 3] = halves<1>(b, d, all);
            block[i] += next_block;
            const Word over = (Word)(block[i] >= blocks);
            block[i] -= over & blocks;
            row[i] += next_row + (over & 1u);
        }
        if (left >= 16 * kLanes)
            for (int i = 0; i < 8; ++i) store(to + i * kLanes * 2, out[i]);
        else
            std::memcpy(to, out, left * sizeof *to);
    }
}

}  // namespace sopr::SOPR_LEVEL
