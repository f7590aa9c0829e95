// The few centroids that must be compared with the points of a block.
//
// Let r be the largest distance of the points to some centroid a, their anchor. By the triangle inequality, a centroid
// c with |a - c| > 2 r is farther from each point than a. Any anchor gives correct labels; the cluster of the points
// when they were grouped makes few comparisons.
#pragma once

#include "cpu/kmeans_points.h"

namespace sopr::SOPR_LEVEL {

#if defined(__AVX512F__)
inline __mmask16 lanes_within(float limit, __m512 values, int64_t number) {
    const __mmask16 exist = __mmask16(number < kLanes ? (1 << number) - 1 : 0xFFFF);
    return _mm512_mask_cmp_ps_mask(exist, values, _mm512_set1_ps(limit), _CMP_LE_OQ);
}
#endif

// indices = base + i of every value that does not exceed the limit; returns their number. May write kLanes more.
inline int64_t indices_within(float limit, const float* values, int64_t number, int32_t base, int32_t* indices) {
    int64_t count = 0;
#if defined(__AVX512F__)
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (int64_t i = 0; i < number; i += kLanes) {
        const __mmask16 near = lanes_within(limit, _mm512_loadu_ps(values + i), number - i);
        const __m512i index = _mm512_add_epi32(lanes, _mm512_set1_epi32(base + int32_t(i)));
        _mm512_storeu_si512(indices + count, _mm512_maskz_compress_epi32(near, index));
        count += __builtin_popcount(near);
    }
#else
    for (int64_t i = 0; i < number; ++i) {
        indices[count] = base + int32_t(i);
        count += values[i] <= limit;
    }
#endif
    return count;
}

// Centroids within `reach` of an anchor, without the anchor itself, ascending.
struct Nearby {
    int32_t* index;  // room for kLanes more than `number`
    float* squared;  // distances to the anchor
    int64_t number;
    float reach;

    void keep(float within, const int32_t* from_index, const float* from_squared, int64_t from_number);
};

// The source may be this list itself: writes never overtake reads.
inline void Nearby::keep(float within, const int32_t* from_index, const float* from_squared, int64_t from_number) {
    number = 0;
    reach = within;
#if defined(__AVX512F__)
    for (int64_t i = 0; i < from_number; i += kLanes) {
        const __m512 values = _mm512_loadu_ps(from_squared + i);
        const __m512i indices = _mm512_loadu_si512(from_index + i);
        const __mmask16 near = lanes_within(reach, values, from_number - i);
        _mm512_storeu_ps(squared + number, _mm512_maskz_compress_ps(near, values));
        _mm512_storeu_si512(index + number, _mm512_maskz_compress_epi32(near, indices));
        number += __builtin_popcount(near);
    }
#else
    for (int64_t i = 0; i < from_number; ++i) {
        const bool is_near = from_squared[i] <= reach;
        index[number] = from_index[i];
        squared[number] = from_squared[i];
        number += is_near;
    }
#endif
}

// One bit per lane, set where a <= b.
inline uint32_t lanes_below_or_equal(Float a, Float b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
#elif defined(__AVX2__)
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LE_OQ)));
#else
    const Int at_most = a <= b;
    uint32_t lanes = 0;
    for (int lane = 0; lane < kLanes; ++lane) lanes |= uint32_t(at_most[lane] & 1) << lane;
    return lanes;
#endif
}

// Compare a block with C listed centroids. Most are no nearer than the anchor, so the common case returns early.
template <int C>
inline void compare_listed(const float* block, const float* centroids, const int32_t* list, int64_t width,
                           Nearest& nearest) {
    const float* centroid[C];
    for (int c = 0; c < C; ++c) centroid[c] = centroids + list[c] * width;
    Float squared[C] = {};
    for (int64_t d = 0; d < width; ++d) {
        const Float x = load(block + d * kLanes);
        for (int c = 0; c < C; ++c) {
            const Float difference = x - broadcast(centroid[c][d]);
            squared[c] += difference * difference;
        }
    }
    Float least = squared[0];
    for (int c = 1; c < C; ++c) least = squared[c] < least ? squared[c] : least;
    if (!lanes_below_or_equal(least, nearest.squared)) return;
    for (int c = 0; c < C; ++c) {
        const Int first = (squared[c] == nearest.squared) & (list[c] < nearest.label);
        const Int closer = (squared[c] < nearest.squared) | first;
        nearest.squared = closer ? squared[c] : nearest.squared;
        nearest.label = closer ? Int{} + list[c] : nearest.label;
    }
}

inline void compare_nearby(const float* block, const float* centroids, const Nearby& nearby, int64_t width,
                           Nearest& nearest) {
    const int64_t number = nearby.number;
    for (int64_t i = number; i % 4 != 0; ++i) nearby.index[i] = nearby.index[i - 1];
    int64_t i = 0;
    for (; i + 4 < number; i += 8) compare_listed<8>(block, centroids, nearby.index + i, width, nearest);
    if (i < number) compare_listed<4>(block, centroids, nearby.index + i, width, nearest);
}

}  // namespace sopr::SOPR_LEVEL
