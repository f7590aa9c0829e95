// Shared by the k-means kernels: packed points, distances, nearest centroids, scheduling.
//
// Distances are sums of squared differences, not |x|² - 2 x·c + |c|², which loses digits when data are far from 0. All
// kernels sum in the order of the columns, so a point and a centroid have the same distance everywhere.
#pragma once

#include "cpu/arena.h"
#include "cpu/pool.h"
#include "cpu/simd.h"
#include "kmeans_numbers.h"

namespace sopr::SOPR_LEVEL {

constexpr int64_t kChunk = 1024;  // points per task, a multiple of kLanes
constexpr int kAnchors = 8;       // centroids whose distances are computed together

inline int64_t blocks_of(int64_t points) { return ceil_div(points, kLanes); }
inline int64_t chunks_of(int64_t points) { return ceil_div(points, kChunk); }

// The bits of |x|. For finite numbers they are ordered like the numbers, and an integer maximum vectorises.
inline int32_t magnitude_bits(float x) {
    int32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits & 0x7FFFFFFF;
}

inline float largest_magnitude(const float* x, int64_t count) {
    int32_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int32_t bits = magnitude_bits(x[i]);
        largest = bits > largest ? bits : largest;
    }
    float magnitude;
    __builtin_memcpy(&magnitude, &largest, sizeof magnitude);
    return magnitude;
}

// largest (width) = the largest magnitude in each column of x (count, width).
inline void column_magnitudes(const float* x, int64_t count, int64_t width, float* largest) {
    for (int64_t d = 0; d < width; ++d) largest[d] = 0;
    for (int64_t row = 0; row < count; ++row, x += width)
        for (int64_t d = 0; d < width; ++d) {
            const float magnitude = __builtin_fabsf(x[d]);
            largest[d] = magnitude > largest[d] ? magnitude : largest[d];
        }
}

// block (width, kLanes) = kLanes scaled rows, transposed in squares of 4 x 4.
inline void pack_block(const float* const (&rows)[kLanes], int64_t width, float scale, float* block) {
    int64_t d = 0;
    for (; d + 4 <= width; d += 4) {
        Float squares[4];
        for (int lane = 0; lane < kLanes; ++lane)
            std::memcpy(reinterpret_cast<float*>(&squares[lane % 4]) + lane / 4 * 4, rows[lane] + d, 4 * sizeof(float));
        exchange<1, 4>(squares);
        exchange<2, 4>(squares);
        for (int i = 0; i < 4; ++i) store(block + (d + i) * kLanes, squares[i] * scale);
    }
    for (; d < width; ++d)
        for (int lane = 0; lane < kLanes; ++lane) block[d * kLanes + lane] = rows[lane][d] * scale;
}

// packed (blocks, width, kLanes) = scaled points (count, width); copies of the last row fill the last block.
inline void pack(const float* points, int64_t count, int64_t width, float scale, float* packed) {
    for (int64_t first = 0; first < count; first += kLanes) {
        const float* rows[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) rows[lane] = points + min(first + lane, count - 1) * width;
        pack_block(rows, width, scale, packed + first * width);
    }
}

// Squared distances of a packed block to C consecutive centroids.
template <int C>
inline void distances(const float* block, const float* centroids, int64_t width, Float (&squared)[C]) {
    for (int c = 0; c < C; ++c) squared[c] = Float{};
    for (int64_t d = 0; d < width; ++d) {
        const Float x = load(block + d * kLanes);
        for (int c = 0; c < C; ++c) {
            const Float difference = x - broadcast(centroids[c * width + d]);
            squared[c] += difference * difference;
        }
    }
}

struct Nearest {
    Float squared;
    Int label;
};

template <int C>
inline void compare(const float* block, const float* centroids, int64_t first, int64_t width, Nearest& nearest) {
    Float squared[C];
    distances<C>(block, centroids + first * width, width, squared);
    for (int c = 0; c < C; ++c) {
        const Int closer = squared[c] < nearest.squared;
        nearest.squared = closer ? squared[c] : nearest.squared;
        nearest.label = closer ? Int{} + int32_t(first + c) : nearest.label;
    }
}

// The nearest centroid of each point, ties to the lowest index.
inline Nearest nearest_of(const float* block, const float* centroids, int64_t clusters, int64_t width) {
    Nearest nearest = {broadcast(__builtin_inff()), Int{}};
    int64_t k = 0;
    for (; k + 8 <= clusters; k += 8) compare<8>(block, centroids, k, width, nearest);
    if (clusters & 4) compare<4>(block, centroids, k, width, nearest), k += 4;
    if (clusters & 2) compare<2>(block, centroids, k, width, nearest), k += 2;
    if (clusters & 1) compare<1>(block, centroids, k, width, nearest);
    return nearest;
}

// How many problems for_problems() solves at a time. Workers of no problem get no memory: it would be refused where one
// large problem meets many threads.
inline int problems_at_a_time(int64_t problems, int threads) { return problems < threads ? 1 : threads; }

// solve(problem, worker, threads): one problem per thread while there are as many problems as threads, then the rest
// one by one on all threads.
template <class Solve>
void for_problems(int64_t problems, int threads, Solve&& solve) {
    const int64_t side_by_side = problems / threads * threads;
    parallel_for(side_by_side, threads, [&](int64_t problem, int worker) { solve(problem, worker, 1); });
    for (int64_t problem = side_by_side; problem < problems && !cancelled(); ++problem) solve(problem, 0, threads);
}

}  // namespace sopr::SOPR_LEVEL
