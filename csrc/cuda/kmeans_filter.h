// Which centroids may be nearest to a point, by products on tensor cores; the few that may are compared exactly.
//
// With x and c relative to some centre, |x - c|² = |x|² + |c|² - 2 x·c. Products of numbers that are rounded to TF32
// give the last term with an error of at most 2^-9 |x| |c|. Let u be the squared distance to any centroid and r = |x| +
// √u. The nearest centroid has |c| <= r, so |c|² - 2 x·c <= u - |x|² + 2^-9 |x| r, up to rounding errors of fp32, below
// 2^-13 (1 + width / 32) r². Others that pass cost a comparison.
#pragma once

#include "cuda/kmeans_points.h"
#include "cuda/mma.h"

namespace sopr::cuda {

constexpr float kFar = 0x1p125f;  // above any squared distance

// -2 times centroids relative to the centre, rounded, and their squared lengths: rows of
// kmeans_filter_stride() floats, so that lanes meet no bank conflicts. Rows behind the last centroid, up to a multiple
// of kPart, are far.
struct FilterRows {
    float* rows;
    float* centre;  // centre_floats() of them, 0 behind the last column
    int width, clusters;

    SOPR_INLINE static int64_t centre_floats(int64_t width) { return (width + 31) / 32 * 32; }

    __device__ static float rounded(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xFFFFE000u); }
    __device__ int padded_clusters() const { return (clusters + int(kPart) - 1) / int(kPart) * int(kPart); }

    // The median of some of `number` centroids, column by column: far ones do not move it. Includes no barrier.
    __device__ void choose_centre(const Centroids& centroids, int64_t number) const {
        const int lane = lane_of_thread();
        for (int64_t d = warp_of_thread(); d < centre_floats(width); d += kProblemWarps) {
            const float x = d < width ? centroids[lane * number / kWarpSize][d] : 0;
            int rank = 0;
            for (int other = 0; other < kWarpSize; ++other) {
                const float its = __shfl_sync(kWholeWarp, x, other);
                rank += its < x || (its == x && other < lane);
            }
            if (lane == 0) centre[d] = 0;
            __syncwarp();
            if (rank == kWarpSize / 2 && fabsf(x) < INFINITY) centre[d] = x;
        }
    }

    // Eight lanes write a row; includes no barrier.
    __device__ void write(const Centroids& centroids) const {
        constexpr int kLanes = 8;
        const int stride = int(kmeans_filter_stride(width)), first = lane_of_thread() % kLanes;
        for (int k = int(threadIdx.x) / kLanes; k < padded_clusters(); k += kProblemThreads / kLanes) {
            float* row = rows + k * stride;
            float squared = 0;
            for (int d = first; d < stride - 4; d += kLanes) {
                const float x = k < clusters && d < width ? centroids[k][d] - centre[d] : 0;
                squared = fmaf(x, x, squared);
                row[d] = -2 * rounded(x);
            }
            for (int step = kLanes / 2; step > 0; step /= 2) squared += __shfl_xor_sync(kWholeWarp, squared, step);
            if (first == 0) row[stride - 4] = k < clusters ? squared : 2 * kFar;
        }
    }
};

// The points of a warp's group, of which lane 4 g + t gives parts of rows g, g + 8, g + 16 and g + 24 to products of 8
// columns, called steps. With kSteps = 0, they are read again for every product.
template <int kSteps>
struct Filter {
    static constexpr int kTiles = 16;  // of 8 centroids, in a word of every row
    FilterRows centroids;
    const Points& all;
    int64_t group;
    int32_t rows[4];
    uint32_t kept[kSteps > 0 ? kSteps : 1][2][4];

    __device__ Filter(const FilterRows& centroids, const Points& all, int64_t group, int64_t row)
        : centroids(centroids), all(all), group(group) {
#pragma unroll
        for (int i = 0; i < 4; ++i) rows[i] = __shfl_sync(kWholeWarp, int32_t(row), 8 * i + lane_of_thread() / 4);
        each_source([&](const auto& column) {
#pragma unroll
            for (int s = 0; s < kSteps; ++s) read(s, s < kSteps - 1, column, kept[s]);
        });
    }

    __device__ int stride() const { return kSteps > 0 ? 8 * kSteps + 4 : int(kmeans_filter_stride(centroids.width)); }

    // read(column), where column(i, four) is column 4 four + t of row 8 i + g.
    template <class Read>
    __device__ __forceinline__ void each_source(const Read& read) const {
        const int g = lane_of_thread() / 4, t = lane_of_thread() % 4;
        if (all.held >= 0) {
            const float* from = all.group_held(group);
            read([&](int i, int four) { return from[Points::place_held(t, 8 * i + g) + 4 * four * kWarpSize]; });
        } else {
            read([&](int i, int four) { return all.scaled(rows[i], 4 * four + t); });
        }
    }

    template <class Column>
    __device__ __forceinline__ void read(int step, bool exists, const Column& column, uint32_t (&points)[2][4]) const {
        const int t = lane_of_thread() % 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int four = 2 * step + half;
            const float centre = centroids.centre[4 * four + t];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float x = exists || 4 * four + t < centroids.width ? column(i, four) : 0;
                points[i / 2][2 * half + i % 2] = __float_as_uint(FilterRows::rounded(x - centre));
            }
        }
    }

    // visit(i, j, column, |c|² - 2 x·c - at_most[i]) for row 8 i + g and the centroids `column` of tiles first and
    // first + 1 that the lane holds, j being 0 or 1. Their products alternate, so that none waits for the one before.
    template <class Visit>
    __device__ __forceinline__ void two_tiles(int first, const float (&at_most)[4], const Visit& visit) const {
        const int lane = lane_of_thread(), t = lane % 4;
        const float* row = centroids.rows + first * 8 * stride();
        float sums[2][2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float* squared = row + (8 * j + 2 * t + 1) * stride() - 4;
            const float both[2] = {squared[0], squared[stride()]};
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[j][i / 4][i % 4] = both[i % 2] - at_most[i / 2];
        }
        const float* of_lane = row + (lane / 16 * 8 + lane % 8) * stride() + lane / 8 % 2 * 4;
        const auto add = [&](int step, const uint32_t (&points)[2][4]) {
            uint32_t b[4];
            load_matrices(b, of_lane + 8 * step);
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int m = 0; m < 2; ++m) mma_tf32(sums[j][m], points[m], b[2 * j], b[2 * j + 1]);
        };
        if constexpr (kSteps > 0) {
#pragma unroll
            for (int s = 0; s < kSteps; ++s) add(s, kept[s]);
        } else {
            for (int s = 0; 8 * s < centroids.width; ++s) {
                uint32_t points[2][4];
                each_source([&](const auto& column) { read(s, false, column, points); });
                add(s, points);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
            for (int i = 0; i < 8; ++i) visit(i / 2, j, 2 * t + i % 2, sums[j][i / 4][i % 4]);
    }

    // A centroid that is near to the lane's point.
    __device__ int32_t guess() const {
        constexpr unsigned kIndex = 0xFFF;  // lower bits of a distance hold the number of a centroid
        const float none[4] = {};
        float least[4];
        for (float& x : least) x = __uint_as_float(0x7F7FF000u);
        for (int tile = 0; 8 * tile < centroids.clusters && 8 * tile <= int(kIndex) - 15; tile += 2)
            two_tiles(tile, none, [&](int i, int j, int column, float x) {
                const unsigned k = unsigned(8 * (tile + j) + column);
                if (int(k) >= centroids.clusters) return;
                least[i] = fminf(least[i], __uint_as_float((__float_as_uint(x) & ~kIndex) | k));
            });
        float own = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            for (int step = 1; step < 4; step *= 2)
                least[i] = fminf(least[i], __shfl_xor_sync(kWholeWarp, least[i], step));
            const float its = __shfl_sync(kWholeWarp, least[i], lane_of_thread() % 8 * 4);
            if (lane_of_thread() / 8 == i) own = its;
        }
        return int32_t(__float_as_uint(own) & kIndex);
    }

    // What |c|² - 2 x·c is at most for the nearest centroid, if x lies `squared` from the centre and `within` from some
    // centroid.
    __device__ float at_most(float squared, float within) const {
        if (!(within < INFINITY)) return kFar;
        const float length = sqrtf(squared), reach = length + sqrtf(within);
        const float rounding = 0x1p-13f + 0x1p-18f * float(centroids.width);
        return within - squared + 0x1p-9f * length * reach + rounding * reach * reach + 0x1p-100f;
    }

    // visit(k) for the centroids that may be nearest to the lane's point, but for the `known` one, if it is among them.
    // `words` (32, 4) is this warp's memory.
    template <class Visit>
    __device__ void each_near(float at_most, int known, unsigned* words, const Visit& visit) const {
        const int lane = lane_of_thread(), g = lane / 4, t = lane % 4;
        float of_rows[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) of_rows[i] = __shfl_sync(kWholeWarp, at_most, 8 * i + g);
        const int tiles = centroids.padded_clusters() / 8;
        for (int base = 0; base < tiles; base += kTiles) {
            const int number = tiles - base < kTiles ? tiles - base : kTiles;
            unsigned signs[4] = {};
#pragma unroll 1
            for (int tile = 0; tile < number; tile += 2)
                two_tiles(base + tile, of_rows, [&](int i, int, int, float x) {
                    signs[i] = __funnelshift_l(__float_as_uint(x), signs[i], 1);
                });
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; ++i) words[(8 * i + g) * 4 + t] = signs[i] << (2 * (kTiles - number));
            __syncwarp();
            const unsigned of_known = unsigned(known - 8 * base);
            const unsigned known_bit = of_known < 8 * kTiles ? 0x80000000u >> (of_known / 8 * 2 + of_known % 2) : 0;
            unsigned left[4];
#pragma unroll
            for (int part = 0; part < 4; ++part)
                left[part] = words[lane * 4 + part] & (of_known % 8 / 2 == part ? ~known_bit : ~0u);
            while (true) {
                int part = 0;
                unsigned bits = left[0];
#pragma unroll
                for (int other = 1; other < 4; ++other)
                    if (bits == 0) {
                        bits = left[other];
                        part = other;
                    }
                if (bits == 0) break;
                const unsigned place = unsigned(__clz(int(bits)));
#pragma unroll
                for (int other = 0; other < 4; ++other)
                    if (other == part) left[other] = bits & ~(0x80000000u >> place);
                const int k = 8 * (base + int(place / 2)) + 2 * part + int(place % 2);
                if (k < centroids.clusters) visit(k);
            }
        }
    }
};

}  // namespace sopr::cuda
