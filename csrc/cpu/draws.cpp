#include "cpu/draws.h"

namespace sopr::SOPR_LEVEL {
namespace {

// Lanes 2^k * 2 apart pair up so that four vectors of words become runs of whole counters: see draw_rows.
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

// Counters run along the blocks of 8 columns of a row, then to the next row. Lane 4 b + i of a batch takes counter
// i * kLanes / 4 + b: then the 4 x 4 transposes of words inside quarters of vectors leave whole counters in order.
void Drops::draw_rows(int64_t rows, int64_t columns, uint16_t* to) const {
    constexpr auto all = std::make_integer_sequence<int, kLanes>{};
    const int64_t blocks = draws_row(columns) / 8, total = rows * blocks;
    Word block, row;
    for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t counter = lane % 4 * (kLanes / 4) + lane / 4;
        block[lane] = uint32_t(counter % blocks);
        row[lane] = uint32_t(counter / blocks);
    }
    const uint32_t width = uint32_t(blocks), next_block = uint32_t(kLanes % blocks),
                   next_row = uint32_t(kLanes / blocks);
    for (int64_t done = 0; done < total; done += kLanes) {
        const Words w = words(block, row);
        const Word a = low_pairs(w.word[0], w.word[1], all), b = high_pairs(w.word[0], w.word[1], all);
        const Word c = low_pairs(w.word[2], w.word[3], all), d = high_pairs(w.word[2], w.word[3], all);
        const Word out[4] = {halves<0>(a, c, all), halves<1>(a, c, all), halves<0>(b, d, all), halves<1>(b, d, all)};
        const int64_t left = (total - done) * 8;
        if (left >= kLanes * 8) {
            for (int i = 0; i < 4; ++i) store(to + i * kLanes * 2, out[i]);
        } else {
            std::memcpy(to, out, left * sizeof *to);
        }
        to += kLanes * 8;
        block += next_block;
        const Word over = (Word)(block >= width);
        block -= over & width;
        row += next_row + (over & 1u);
    }
}

}  // namespace sopr::SOPR_LEVEL
