#include "cpu/dropout_draws.h"

namespace sopr::SOPR_LEVEL {

// Counters run along the blocks of 8 columns of a row, then to the next row. Lane 4 b + i takes counter
// i * kLanes / 4 + b, so that the 4 x 4 transposes put the words of whole counters in order.
void draw_rows(const DropoutSite& site, int64_t rows, int64_t columns, uint16_t* to) {
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
        for (int i = 0; i < 2; ++i) {
            exchange<1, 4>(w[i].word);
            exchange<2, 4>(w[i].word);
            block[i] += next_block;
            const Word over = (Word)(block[i] >= blocks);
            block[i] -= over & blocks;
            row[i] += next_row + (over & 1u);
        }
        if (left < 16 * kLanes) return void(std::memcpy(to, w, left * sizeof *to));
        std::memcpy(to, w, sizeof w);
    }
}

}  // namespace sopr::SOPR_LEVEL
