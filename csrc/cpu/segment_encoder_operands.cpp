#include "cpu/segment_encoder_operands.h"

namespace sopr::SOPR_LEVEL {
namespace {

// to (rows, pitch / 2) = pairs of neighbours in a row.
void pair_columns(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* to, int64_t to_pitch) {
    for (int64_t r = 0; r < rows; ++r, x += pitch, to += to_pitch)
        for (int64_t c = 0; c < columns; c += 2 * kLanes)
            store(to + c / 2, pair_lanes(load(x + c), c + kLanes < columns ? load(x + c + kLanes) : Float{}));
}

// to (rows / 2, pitch) = pairs of neighbours in a column; the last row of an odd number is paired with zeros.
void pair_rows(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* to, int64_t to_pitch) {
    for (int64_t r = 0; r < rows; r += 2, x += 2 * pitch, to += to_pitch)
        for (int64_t c = 0; c < columns; c += kLanes)
            store(to + c, pair_vectors(load(x + c), r + 1 < rows ? load(x + pitch + c) : Float{}));
}

}  // namespace

Left Operands::by_columns(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* buffer) const {
    if (!kBf16 || !pairs) return {x, pitch, 1};
    const int64_t to_pitch = round_up(columns, 2 * kLanes) / 2;
    pair_columns(x, rows, columns, pitch, buffer, to_pitch);
    return {buffer, to_pitch, 1};
}

Left Operands::by_rows(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* buffer) const {
    if (!kBf16 || !pairs) return {x, 1, pitch};
    const int64_t to_pitch = round_up(columns, kLanes);
    pair_rows(x, rows, columns, pitch, buffer, to_pitch);
    return {buffer, 1, to_pitch};
}

Right Operands::right(const float* x, int64_t rows, int64_t columns, int64_t pitch, float* buffer) const {
    if (!kBf16 || !pairs) return plain(x, pitch);
    const int64_t to_pitch = round_up(columns, kLanes);
    pair_rows(x, rows, columns, pitch, buffer, to_pitch);
    return {buffer, to_pitch, kPanel, true};
}

}  // namespace sopr::SOPR_LEVEL
