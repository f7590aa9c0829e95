// Products of 16 rows of a warp with weights on tensor cores, in two precisions with one interface: Tf32 splits every
// operand into two TF32 numbers and adds three products, which gives the grade of fp32; Bf16 rounds operands to bf16.
//
// A value of 16 rows and 8 columns ("tile") is held as the sums of mma.h. Two tiles in a row make the left operand of a
// product of depth 16 without moving a value: which k a lane holds does not matter where the right operand agrees. So
// right operands ("units", 16 deep and 8 wide) are ordered such that with t = lane % 4, words 2 i and 2 i + 1 of Tf32,
// or word i of Bf16, are k = 8 i + 2 t and 8 i + 2 t + 1.
#pragma once

#include "cuda/launch.h"
#include "cuda/mma.h"

namespace sopr::cuda {

constexpr int kTileRows = 16, kTileColumns = 8, kUnitDepth = 16;

// Which of 16 rows, and which of two neighbouring matrices, this lane addresses for a left operand.
__device__ __forceinline__ int lane_row() { return threadIdx.x % 16; }
__device__ __forceinline__ int lane_half() { return threadIdx.x % kWarpSize / 16; }

struct Tf32 {
    using Element = float;                // of keys and values in shared memory
    static constexpr int kUnitWords = 4;  // per lane
    struct LeftHalf {                     // depth 8
        uint32_t high[4], low[4];
    };
    struct Left {
        LeftHalf halves[2];
    };

    // The nearest TF32 number, ties away from 0, and the rest, of which tensor cores ignore the 13 lowest bits. In
    // plain instructions, since nvcc makes twice as many of two cvt.rna.tf32.f32.
    __device__ static void split(float x, uint32_t& high, uint32_t& low) {
        high = (__float_as_uint(x) + 0x1000u) & 0xFFFFE000u;
        low = __float_as_uint(x - __uint_as_float(high));
    }
    // As new values: several products share rows, and nvcc would keep them split in between, and spill.
    __device__ static LeftHalf left_half(const float (&x)[4]) {
        LeftHalf a;
        split(as_new(x[0]), a.high[0], a.low[0]);
        split(as_new(x[2]), a.high[1], a.low[1]);
        split(as_new(x[1]), a.high[2], a.low[2]);
        split(as_new(x[3]), a.high[3], a.low[3]);
        return a;
    }
    __device__ static Left left(const float (&x)[4], const float (&y)[4]) { return {{left_half(x), left_half(y)}}; }

    // The same of 16 rows and 8 or 16 columns in shared memory, in the order of `place`.
    __device__ static LeftHalf left_half_of_rows(const float* rows, int pitch) {
        uint32_t words[4];
        load_matrices(words, rows + lane_row() * pitch + lane_half() * 4);
        LeftHalf a;
        for (int i = 0; i < 4; ++i) split(__uint_as_float(words[i]), a.high[i], a.low[i]);
        return a;
    }
    __device__ static Left left_of_rows(const float* rows, int pitch) {
        return {{left_half_of_rows(rows, pitch), left_half_of_rows(rows + kTileColumns, pitch)}};
    }

    // c[n] += a units[n]. Tensor cores cut off sums instead of rounding them, so they add the small products first and
    // only a few terms. Tiles take turns, since a product waits for the one before with the same sums.
    template <int kNumber>
    __device__ static void add(float (*c)[4], const Left& a, const uint32_t (&units)[kNumber][4]) {
        uint32_t high[kNumber][4], low[kNumber][4];
        float sums[kNumber][4] = {};
        for (int n = 0; n < kNumber; ++n)
            for (int i = 0; i < 4; ++i) split(__uint_as_float(units[n][i]), high[n][i], low[n][i]);
        for (int h = 0; h < 2; ++h)
            for (int n = 0; n < kNumber; ++n) mma_tf32(sums[n], a.halves[h].low, high[n][2 * h], high[n][2 * h + 1]);
        for (int h = 0; h < 2; ++h)
            for (int n = 0; n < kNumber; ++n) mma_tf32(sums[n], a.halves[h].high, low[n][2 * h], low[n][2 * h + 1]);
        for (int h = 0; h < 2; ++h)
            for (int n = 0; n < kNumber; ++n) mma_tf32(sums[n], a.halves[h].high, high[n][2 * h], high[n][2 * h + 1]);
        for (int n = 0; n < kNumber; ++n)
            for (int i = 0; i < 4; ++i) c[n][i] += sums[n][i];
    }

    // Products of depth 8, with halves of units.
    template <int kNumber>
    __device__ static void add(float (*c)[4], const LeftHalf& a, const uint32_t (&halves)[kNumber][2]) {
        uint32_t high[kNumber][2], low[kNumber][2];
        float sums[kNumber][4] = {};
        for (int n = 0; n < kNumber; ++n)
            for (int i = 0; i < 2; ++i) split(__uint_as_float(halves[n][i]), high[n][i], low[n][i]);
        for (int n = 0; n < kNumber; ++n) mma_tf32(sums[n], a.low, high[n][0], high[n][1]);
        for (int n = 0; n < kNumber; ++n) mma_tf32(sums[n], a.high, low[n][0], low[n][1]);
        for (int n = 0; n < kNumber; ++n) mma_tf32(sums[n], a.high, high[n][0], high[n][1]);
        for (int n = 0; n < kNumber; ++n)
            for (int i = 0; i < 4; ++i) c[n][i] += sums[n][i];
    }

    // Place of column or row c of eight in shared memory, so that a row of load_matrices is in the order of units.
    __device__ static constexpr int place(int c) { return c / 2 + c % 2 * 4; }
    __device__ static void store_pair(float* at, int t, float x, float y) {
        at[t] = x;
        at[t + 4] = y;
    }
    __device__ static float element(float x) { return x; }
    __device__ static float rounded(float x) { return x; }  // as products see it
};

struct Bf16 {
    using Element = uint16_t;
    static constexpr int kUnitWords = 2;
    struct LeftHalf {
        uint32_t words[2];
    };
    struct Left {
        uint32_t words[4];
    };

    __device__ static LeftHalf left_half(const float (&x)[4]) { return {{to_bf16(x[0], x[1]), to_bf16(x[2], x[3])}}; }
    __device__ static Left left(const float (&x)[4], const float (&y)[4]) {
        return {{to_bf16(x[0], x[1]), to_bf16(x[2], x[3]), to_bf16(y[0], y[1]), to_bf16(y[2], y[3])}};
    }
    __device__ static LeftHalf left_half_of_rows(const uint16_t* rows, int pitch) {
        LeftHalf a;
        load_matrices(a.words, rows + lane_row() * pitch);
        return a;
    }
    __device__ static Left left_of_rows(const uint16_t* rows, int pitch) {
        Left a;
        load_matrices(a.words, rows + lane_row() * pitch + lane_half() * 8);
        return a;
    }
    template <int kNumber>
    __device__ static void add(float (*c)[4], const Left& a, const uint32_t (&units)[kNumber][2]) {
        for (int n = 0; n < kNumber; ++n) mma_bf16(c[n], a.words, units[n][0], units[n][1]);
    }
    template <int kNumber>
    __device__ static void add(float (*c)[4], const LeftHalf& x, const uint32_t (&halves)[kNumber][2]) {
        const uint32_t a[4] = {x.words[0], x.words[1], 0, 0};
        for (int n = 0; n < kNumber; ++n) mma_bf16(c[n], a, halves[n][0], 0);
    }
    __device__ static constexpr int place(int c) { return c; }
    __device__ static void store_pair(uint16_t* at, int t, float x, float y) {
        reinterpret_cast<uint32_t*>(at)[t] = to_bf16(x, y);
    }
    __device__ static uint16_t element(float x) { return uint16_t(to_bf16(x, 0.0f)); }
    __device__ static float rounded(float x) { return __uint_as_float(to_bf16(x, 0.0f) << 16); }
};

// The unit of this lane at `words`, which holds those of a warp's lanes one after the other.
__device__ __forceinline__ void load_unit(const uint32_t* words, uint32_t (&unit)[4]) {
    const uint4 x = reinterpret_cast<const uint4*>(words)[threadIdx.x % kWarpSize];
    unit[0] = x.x, unit[1] = x.y, unit[2] = x.z, unit[3] = x.w;
}
__device__ __forceinline__ void load_unit(const uint32_t* words, uint32_t (&unit)[2]) {
    const uint2 x = reinterpret_cast<const uint2*>(words)[threadIdx.x % kWarpSize];
    unit[0] = x.x, unit[1] = x.y;
}

// A unit of rows in shared memory: element (row, c) of the unit's transpose is at rows[row * pitch + place(c)]. Half of
// one if `words` has half as many.
template <class P, int kWords>
__device__ __forceinline__ void load_unit_of_rows(const typename P::Element* rows, int pitch,
                                                  uint32_t (&words)[kWords]) {
    constexpr int kElements = 16 / int(sizeof(typename P::Element));  // of a matrix' row
    const int lane = threadIdx.x % kWarpSize;
    load_matrices(words, rows + lane % 8 * pitch + lane / 8 % kWords * kElements);
}

// A unit whose depth is 16 rows in shared memory; its columns are the eight at `rows`, in the order of P::place.
__device__ __forceinline__ void load_unit_of_columns(const float* rows, int pitch, uint32_t (&unit)[4]) {
    const int g = threadIdx.x % kWarpSize / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; ++i) unit[i] = __float_as_uint(rows[(i / 2 * 8 + 2 * t + i % 2) * pitch + Tf32::place(g)]);
}
__device__ __forceinline__ void load_unit_of_columns(const uint16_t* rows, int pitch, uint32_t (&unit)[2]) {
    load_matrices_transposed(unit, rows + threadIdx.x % 16 * pitch);
}

// The left operand that is the transpose of 16 rows and the 16 columns at `rows`.
__device__ __forceinline__ Tf32::Left load_left_of_columns(const float* rows, int pitch) {
    const int g = threadIdx.x % kWarpSize / 4, t = threadIdx.x % 4;
    float x[2][4];
    for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 4; ++i)
            x[half][i] = rows[(half * 8 + 2 * t + i % 2) * pitch + i / 2 * kTileColumns + Tf32::place(g)];
    return Tf32::left(x[0], x[1]);
}
__device__ __forceinline__ Bf16::Left load_left_of_columns(const uint16_t* rows, int pitch) {
    const int lane = threadIdx.x % kWarpSize;
    Bf16::Left a;
    load_matrices_transposed(a.words, rows + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * kTileColumns);
    return a;
}

// Left operands of products: tiles in registers, or 16 rows in shared memory.
template <class P>
struct InRegisters {
    const float (*x)[4];

    __device__ typename P::Left unit(int u) const { return P::left(x[2 * u], x[2 * u + 1]); }
    __device__ typename P::LeftHalf half() const { return P::left_half(x[0]); }
};
// Columns 32 on are `next` elements after the first.
template <class P>
struct InRows {
    const typename P::Element* rows;
    int pitch, next = 0;

    __device__ typename P::Left unit(int u) const {
        return P::left_of_rows(rows + u / 2 * next + u % 2 * kUnitDepth, pitch);
    }
    __device__ typename P::LeftHalf half() const { return P::left_half_of_rows(rows, pitch); }
};

// sums (16, 8 kTiles) += x (16, 16 kUnits) weights, whose units are ordered by depth, then by tile.
template <class P, int kTiles, int kUnits, class Operand>
__device__ __forceinline__ void add_product_of(float (&sums)[kTiles][4], const Operand& x, const uint32_t* weights) {
    constexpr int kNumber = 4;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
        const typename P::Left a = x.unit(u);
#pragma unroll
        for (int first = 0; first < kTiles; first += kNumber) {
            uint32_t units[kNumber][P::kUnitWords];
            for (int n = 0; n < kNumber; ++n)
                load_unit(weights + (u * kTiles + first + n) * kWarpSize * P::kUnitWords, units[n]);
            P::add(sums + first, a, units);
        }
    }
}
template <class P, int kTiles, int kUnits>
__device__ __forceinline__ void add_product(float (&sums)[kTiles][4], const float (&x)[2 * kUnits][4],
                                            const uint32_t* weights) {
    add_product_of<P, kTiles, kUnits>(sums, InRegisters<P>{x}, weights);
}

}  // namespace sopr::cuda
