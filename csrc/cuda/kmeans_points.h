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

constexpr int kMostFours = kMostColumns / 4;

// Rows of stride floats each.
struct Centroids {
    float* rows;
    int64_t stride;
    __device__ float* operator[](int64_t k) const { return rows + k * stride; }
};

// Positions first : end of a problem. Position i holds row order[i], or row i without an order.
struct Points {
    const float* raw;      // (N, D), not scaled
    int held;              // where in shared memory (groups, D, 32) lies, scaled, see place_held(); -1: nowhere
    const int32_t* order;  // (N) or null
    int64_t first, end, width;
    float scale;

    // Where column d of a lane lies in its group, so that four columns of eight lanes meet no bank conflicts.
    __device__ static int place_held(int d, int lane) { return d * kWarpSize + (lane ^ (d & 3) * 8); }

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
            float* to = group_held(group);
            for (int64_t d = 0; d < width; ++d) to[place_held(int(d), lane_of_thread())] = scaled(row, d);
        }
    }
};

// Column d of lane `lane` of a group, whose row is `row`.
struct Column {
    const Points& points;
    int64_t group, row;
    int lane;
    __device__ float operator()(int64_t d) const {
        return points.held < 0 ? points.scaled(row, d) : points.group_held(group)[Points::place_held(int(d), lane)];
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
        const float* from = points.group_held(group);
        each_column<kFours>(last, [&](int d) { x[d] = from[Points::place_held(d, lane)]; });
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
    __device__ void compare(float other, int32_t k) {  // in any order; ties to the lowest label
        if (other < squared || (other == squared && k < label)) {
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

// The lane's point of a group.
template <int kFours>
struct OnePoint {
    float x[4 * kFours];
    int last;
    __device__ OnePoint(const Points& points, int64_t group, int64_t row) : last(last_of<kFours>(points.width)) {
        load_columns<kFours>(x, points, group, row, lane_of_thread());
    }
    __device__ float distance(const float* candidate) const {
        const Row<kFours> c(candidate);
        float squared = 0;
        each_column<kFours>(last, [&](int d) {
            const float difference = x[d] - c[d];
            squared = fmaf(difference, difference, squared);
        });
        return squared;
    }
};

}  // namespace sopr::cuda
