#include "cpu/product.h"

#include "cpu/pool.h"

namespace sopr::SOPR_LEVEL {
namespace {

constexpr int64_t kTilesBetweenPolls = 256;  // about a millisecond
constexpr int64_t kLine = 16;                // floats of a cache line
constexpr int64_t kRun = 256;  // longest sum in registers: longer sums add up partial sums, to limit rounding errors

// A product of at most a tile. Of the arrays ahead it takes one.
template <int Rows, int Vectors, bool Pairs>
void tile(const Product& t) {
    Float sum[Rows][Vectors];
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; ++j) sum[i][j] = Float{};
    const float *left = t.left.data, *right = t.right.data, *ahead = t.ahead[0] ? t.ahead[0] : left;
    const int64_t ahead_step = t.ahead[0] ? kLine : 0, out_row = t.out_row;
    float* out = t.out;
#pragma GCC unroll 4
    for (int64_t k = 0; k < t.depth; ++k) {
        Float b[Vectors];
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; ++j) b[j] = load(right + j * kLanes);
#pragma GCC unroll 6
        for (int i = 0; i < Rows; ++i) {
            const Float a = broadcast(left[i * t.left.row]);
#pragma GCC unroll 4
            for (int j = 0; j < Vectors; ++j) sum[i][j] = Pairs ? add_pairs(sum[i][j], a, b[j]) : sum[i][j] + a * b[j];
        }
        left += t.left.step;
        __builtin_prefetch(ahead, 1, 2);  // one at a time, since a burst would stall
        ahead += ahead_step;
        right += t.right.step;
    }
    if (t.start.data) {
#pragma GCC unroll 6
        for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < Vectors; ++j) {
                const float* start = t.start.data + i * t.start.row;
                sum[i][j] += t.start.of_rows ? broadcast(*start) : load(start + j * kLanes);
            }
    }
    const Float floor = broadcast(t.relu ? 0.0f : -__builtin_inff());
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; ++j) store(out + i * out_row + j * kLanes, max(sum[i][j], floor));
}

using TileKernel = void (*)(const Product&);
template <int Vectors, bool Pairs>
TileKernel kernel(int rows) {
    static_assert(kTileRows == 6);
    constexpr TileKernel kernels[] = {tile<1, Vectors, Pairs>, tile<2, Vectors, Pairs>, tile<3, Vectors, Pairs>,
                                      tile<4, Vectors, Pairs>, tile<5, Vectors, Pairs>, tile<6, Vectors, Pairs>};
    return kernels[rows - 1];
}
template <bool Pairs>
TileKernel kernel(int rows, int vectors) {
    if constexpr (kTileVectors == 4) {
        if (vectors == 4) return kernel<4, Pairs>(rows);
        if (vectors == 3) return kernel<3, Pairs>(rows);
    }
    return vectors == 2 ? kernel<2, Pairs>(rows) : kernel<1, Pairs>(rows);
}

}  // namespace

void multiply(const Product& p) {
    float edge[kTileRows * kPanel];
    const int64_t floats = p.rows * p.columns, tiles_of_all = ceil_div(p.rows, kTileRows) * ceil_div(p.columns, kPanel);
    const int64_t share = p.ahead[0] ? 4 * floats / tiles_of_all : 0;
    int64_t tiles = 0, place = 0;  // place: in all arrays ahead
    Product t = p;
    for (int64_t column = 0, panel = 0; column < p.columns; column += kPanel, ++panel) {
        const int64_t columns = min(p.columns - column, kPanel);
        const int vectors = int(ceil_div(columns, kLanes));
        const bool partial = p.exact && columns % kLanes;
        for (int64_t row = 0; row < p.rows; row += kTileRows, place += share) {
            const int rows = int(min(p.rows - row, kTileRows));
            float* out = p.out + row * p.out_row + column;
            t.out = partial ? edge : out;
            t.out_row = partial ? kPanel : p.out_row;
            const TileKernel run = kBf16 && p.right.pairs ? kernel<kBf16>(rows, vectors) : kernel<false>(rows, vectors);
            for (int64_t k = 0; !k || k < p.depth; k += kRun) {
                if (++tiles % kTilesBetweenPolls == 0 && cancelled()) return;
                t.depth = min(p.depth - k, kRun);
                t.relu = p.relu && k + kRun >= p.depth;
                t.left.data = p.left.data + row * p.left.row + k * p.left.step;
                t.right.data = p.right.data + panel * p.right.panel + k * p.right.step;
                t.start = k ? Start{t.out, t.out_row} : p.start;
                if (!k && p.start.data) t.start.data += row * p.start.row + (p.start.of_rows ? 0 : column);
                if (share) t.ahead[0] = p.ahead[place / floats] + place % floats + k * kLine;
                run(t);
            }
            if (!partial) continue;
            for (int i = 0; i < rows; ++i) std::memcpy(out + i * p.out_row, edge + i * kPanel, columns * sizeof(float));
        }
    }
}

void pack(const float* data, int64_t row, int64_t step, int64_t depth, int64_t columns, bool pairs, float* to) {
    for (int64_t column = 0; column < columns; column += kPanel)
        for (int64_t k = 0; k < depth; k += pairs ? 2 : 1)
            for (int64_t begin = column; begin < column + kPanel; begin += kLanes, to += kLanes) {
                Float low{}, high{};
                for (int64_t i = 0; i < kLanes && begin + i < columns; ++i) {
                    low[i] = data[k * row + (begin + i) * step];
                    if (pairs && k + 1 < depth) high[i] = data[(k + 1) * row + (begin + i) * step];
                }
                store(to, pairs ? pair_vectors(low, high) : low);
            }
}

void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to, int64_t to_row, bool pad,
               float scale) {
    for (int64_t row = 0; row < rows; row += kLanes) {
        const int64_t height = min(rows - row, kLanes);
        for (int64_t column = 0; column < columns; column += kLanes) {
            const int64_t width = min(columns - column, kLanes);
            Float v[kLanes];
            for (int64_t i = 0; i < kLanes; ++i)
                v[i] = i < height ? load(from + (row + i) * from_row + column) * scale : Float{};
            exchange<1, kLanes>(v);
            exchange<2, kLanes>(v);
            exchange<4, kLanes>(v);
            exchange<8, kLanes>(v);
            for (int64_t i = 0; i < width; ++i) {
                float* target = to + (column + i) * to_row + row;
                if (pad || height == kLanes)
                    store(target, v[i]);
                else
                    store(target, v[i], height);
            }
        }
    }
}

}  // namespace sopr::SOPR_LEVEL
