// A block's share of the points of a k-means problem, in groups of 32 that a warp compares with centroids.
//
// Rows of centroids are padded to an odd multiple of four floats, so that they are read four floats at a time and lanes
// that read different rows meet no bank conflicts. Arithmetic takes exact widths: loops over centroids are compiled for
// 1 to kMostFours times four columns in registers, and a branch that all threads take alike skips those of the last
// four that do not exist. Code for each width would be the same, but takes minutes to compile. The columns of wider
// points are read again for every centroid.
//
// Distances sum squared differences in the order of the columns with fused multiply-adds, as csrc/cpu does.
#pragma once

#include "cuda/kmeans_team.h"
#include "kmeans_numbers.h"

#ifndef COUNT_DISTANCES  // python_tests/support/simt counts the distances between points and centroids
#define COUNT_DISTANCES(number)
#endif

namespace sopr::cuda {

constexpr int kMostFours = 8, kMostColumns = 4 * kMostFours;
constexpr int kHalf = kWarpSize / 2;

// Rows (stride floats each) of centroids, multiplied by `scale` when read.
struct Centroids {
    const float* rows;
    int64_t stride;
    float scale;
    __device__ const float* operator[](int64_t k) const { return rows + k * stride; }
};

// Positions first : end of a problem. Position i holds row order[i], or row i without an order.
struct Points {
    const float* raw;      // (N, D), not scaled
    int held;              // where in shared memory (groups, D, 32) lies, scaled; -1: nowhere
    const int32_t* order;  // (N) or null
    int64_t first, end, width;
    float scale;

    // An offset from dynamic_shared(), not a pointer, so that the compiler knows the memory to be shared.
    __device__ float* group_held(int64_t group) const {
        return reinterpret_cast<float*>(dynamic_shared() + held) + group * width * kWarpSize;
    }

    __device__ int64_t groups() const { return end <= first ? 0 : (end - first + kWarpSize - 1) / kWarpSize; }

    // The row of this lane in a group; -1 behind the end.
    __device__ int64_t row_of(int64_t group) const {
        const int64_t position = first + group * kWarpSize + lane_of_thread();
        return position >= end ? -1 : order ? order[position] : position;
    }
    __device__ float scaled(int64_t row, int64_t d) const { return row < 0 ? 0.0f : raw[row * width + d] * scale; }

    // Copy the share to shared memory; includes no barrier.
    __device__ void hold() const {
        if (held < 0) return;
        for (int64_t group = warp_of_thread(); group < groups(); group += kProblemWarps) {
            const int64_t row = row_of(group);
            float* to = group_held(group) + lane_of_thread();
            for (int64_t d = 0; d < width; ++d) to[d * kWarpSize] = scaled(row, d);
        }
    }
};

// Column d of lane `lane` of a group, whose row is `row`.
struct Column {
    const Points& points;
    int64_t group, row;
    int lane;
    __device__ float operator()(int64_t d) const {
        return points.held < 0 ? points.scaled(row, d) : points.group_held(group)[d * kWarpSize + lane];
    }
};

// term(d) for 4 * kFours - 4 columns and the `last` ones after them.
template <int kFours, class Term>
__device__ __forceinline__ void each_column(int last, const Term& term) {
    constexpr int kSure = 4 * kFours - 4;
#pragma unroll
    for (int d = 0; d < kSure; ++d) term(d);
    term(kSure);
    if (last == 1) return;
    term(kSure + 1);
    if (last == 2) return;
    term(kSure + 2);
    if (last == 3) return;
    term(kSure + 3);
}
template <int kFours>
__device__ int last_of(int64_t width) {
    return int(width) - (4 * kFours - 4);
}

template <int kFours>
struct Row {
    float x[4 * kFours];
    __device__ explicit Row(const float* row) {
#pragma unroll
        for (int four = 0; four < kFours; ++four) {
            const float4 values = reinterpret_cast<const float4*>(row)[four];
            x[4 * four] = values.x;
            x[4 * four + 1] = values.y;
            x[4 * four + 2] = values.z;
            x[4 * four + 3] = values.w;
        }
    }
    __device__ float operator[](int d) const { return x[d]; }
};

// x = the columns of a lane of a group, whose row is `row`.
template <int kFours>
__device__ void load_columns(float (&x)[4 * kFours], const Points& points, int64_t group, int64_t row, int lane) {
    const int last = last_of<kFours>(points.width);
    if (points.held >= 0) {
        const float* from = points.group_held(group) + lane;
        each_column<kFours>(last, [&](int d) { x[d] = from[d * kWarpSize]; });
    } else {
        const float* from = points.raw + (row < 0 ? 0 : row) * points.width;  // what lies behind the end is not used
        each_column<kFours>(last, [&](int d) { x[d] = from[d] * points.scale; });
    }
}

// Squared distance between two functions of a column.
template <class A, class B>
__device__ float squared_distance(int64_t width, const A& a, const B& b) {
    float squared = 0;
    for (int64_t d = 0; d < width; ++d) {
        const float difference = a(d) - b(d);
        squared = fmaf(difference, difference, squared);
    }
    return squared;
}

struct Nearest {
    float squared = INFINITY;
    int32_t label = 0;
    __device__ void compare(float other, int32_t k) {
        if (other < squared) {
            squared = other;
            label = k;
        }
    }
};

// kernel.template run<fours>() for the number of fours of columns, or run<0>() for wide points.
template <int kFours = 1, class Kernel>
__device__ auto by_width(int64_t width, const Kernel& kernel) {
    if constexpr (kFours > kMostFours) {
        return kernel.template run<0>();
    } else {
        if (width <= 4 * kFours) return kernel.template run<kFours>();
        return by_width<kFours + 1>(width, kernel);
    }
}

// Lanes i and i + 16 both hold points i and i + 16 of a group and compare them with different centroids. So each value
// read from shared memory serves two points; with one, shared memory would limit the speed.
template <int kFours>
struct TwoPoints {
    float x[2][4 * kFours];
    int last;

    __device__ TwoPoints(const Points& points, int64_t group, int64_t row) : last(last_of<kFours>(points.width)) {
        const int lane = lane_of_thread() % kHalf;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int64_t of_half = __shfl_sync(kWholeWarp, row, lane + i * kHalf);
            load_columns<kFours>(x[i], points, group, of_half, lane + i * kHalf);
        }
    }

    // Column d of the point whose number is the lane's.
    __device__ float own(int64_t d) const { return lane_of_thread() < kHalf ? x[0][d] : x[1][d]; }

    __device__ void distances(const float* centroid, float (&squared)[2]) const {
        const Row<kFours> c(centroid);
        squared[0] = squared[1] = 0;
        each_column<kFours>(last, [&](int d) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float difference = x[i][d] - c[d];
                squared[i] = fmaf(difference, difference, squared[i]);
            }
        });
    }
};

// The same for wide points and centroids outside of shared memory.
template <>
struct TwoPoints<0> {
    const Points& points;
    int64_t group, rows[2], row;

    __device__ TwoPoints(const Points& points, int64_t group, int64_t row) : points(points), group(group), row(row) {
        for (int i = 0; i < 2; ++i) rows[i] = __shfl_sync(kWholeWarp, row, lane_of_thread() % kHalf + i * kHalf);
    }
    __device__ float own(int64_t d) const { return Column{points, group, row, lane_of_thread()}(d); }
    __device__ void distances(const float* centroid, float scale, float (&squared)[2]) const {
        const int lane = lane_of_thread() % kHalf;
        const Column a = {points, group, rows[0], lane}, b = {points, group, rows[1], lane + kHalf};
        squared[0] = squared[1] = 0;
        for (int64_t d = 0; d < points.width; ++d) {
            const float c = centroid[d] * scale, first = a(d) - c, second = b(d) - c;
            squared[0] = fmaf(first, first, squared[0]);
            squared[1] = fmaf(second, second, squared[1]);
        }
    }
};

// Compare a group with centroids: bit i of lane w's word lists centroid base + 32 w + i. nearest[i] is the nearest to
// this lane's i-th point, of the centroids that this lane compares.
template <int kFours>
__device__ void compare_listed(const TwoPoints<kFours>& points, const Centroids& centroids, int64_t base, unsigned word,
                               int words, Nearest (&nearest)[2]) {
    const bool upper = lane_of_thread() >= kHalf;
    for (int w = 0; w < words; ++w) {
        unsigned bits = __shfl_sync(kWholeWarp, word, w);
        while (bits) {
            const int low = __ffs(int(bits)) - 1;
            bits &= bits - 1;
            const int next = bits ? __ffs(int(bits)) - 1 : low;
            COUNT_DISTANCES((bits ? 2 : 1));
            bits &= bits - 1;
            const int64_t k = base + w * kWarpSize + (upper ? next : low);
            float squared[2];
            if constexpr (kFours == 0)
                points.distances(centroids[k], centroids.scale, squared);
            else
                points.distances(centroids[k], squared);
            nearest[0].compare(squared[0], int32_t(k));
            nearest[1].compare(squared[1], int32_t(k));
        }
    }
}

// The centroid nearest to this lane's own point, of those that both halves of the warp compared; ties to the lowest
// label.
__device__ inline Nearest nearest_of_halves(const Nearest (&nearest)[2]) {
    const bool upper = lane_of_thread() >= kHalf;
    const Nearest give = nearest[upper ? 0 : 1];
    Nearest own = nearest[upper ? 1 : 0];
    const float squared = __shfl_xor_sync(kWholeWarp, give.squared, kHalf);
    const int32_t label = __shfl_xor_sync(kWholeWarp, give.label, kHalf);
    if (squared < own.squared || (squared == own.squared && label < own.label)) {
        own.squared = squared;
        own.label = label;
    }
    return own;
}

// A word of compare_listed() that lists all centroids.
__device__ inline unsigned all_listed(int64_t base, int64_t clusters) {
    const int64_t left = clusters - base - lane_of_thread() * kWarpSize;
    return left >= kWarpSize ? 0xFFFFFFFFu : left <= 0 ? 0u : (1u << left) - 1;
}
constexpr int64_t kListed = kWarpSize * kWarpSize;  // centroids that the words of a warp list
__device__ inline int words_of(int64_t base, int64_t clusters) {
    const int64_t words = (clusters - base + kWarpSize - 1) / kWarpSize;
    return int(words < kWarpSize ? words : kWarpSize);
}

}  // namespace sopr::cuda
