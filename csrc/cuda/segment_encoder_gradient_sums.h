// Places where the backward pass adds up gradients: of parameters in global memory, by block (matrices) or by warp
// (vectors), in the order of tiles; of tokens, one after the other.
#pragma once

#include <type_traits>

#include "cuda/segment_encoder_attention_backward.h"
#include "cuda/segment_encoder_tile.h"

namespace sopr::cuda {

struct BackwardRun {
    EncoderRun forward;
    const float* grad_out;
    float* grad_tokens;  // (P, S, N, dc) of the columns; may be null
    // Sums of each block, laid out as the parameters, whose vectors are here instead, by warp: that of the projection,
    // then those of each layer in the order of PackedWeights.
    float *matrices, *vectors;
    int64_t parameters, vector_entries;
};

// A tile with operands of products over tokens in arrays of BackwardMemory, where warps share them.
template <class P, int kDim>
class GradientSums : public Tile<P, kDim, Tape> {
    using Base = Tile<P, kDim, Tape>;

  protected:
    using Memory = BackwardMemory<P>;
    static constexpr int kTiles = Base::kTiles, kPitch = Memory::kPitch;
    using Base::active;
    using Base::lane_;
    using Base::length_;
    using Base::p_;
    using Base::policy_;
    using Base::row;
    using Base::row_in_tile;
    using Base::warp_;

    const BackwardRun& back_;
    const Memory memory_{};
    int pieces_ = 0;  // in the tile
    float* const matrices_ = back_.matrices + blockIdx.x * back_.parameters;
    float* const vectors_ = back_.vectors + (blockIdx.x * kTileWarps + warp_) * back_.vector_entries;

    __device__ GradientSums(const BackwardRun& run, const TileMemory<P>& memory, int64_t policy, int64_t tile,
                            const Tape& tape)
        : Base(run.forward, memory, policy, tile, tape), back_(run) {
        const Piece* pieces = run.forward.tiles.pieces + tile * kTileWarps;
        while (pieces_ < kTileWarps && pieces[pieces_].segment >= 0) ++pieces_;
    }

    // Places where this block adds gradients of the layer's matrices, and this warp those of its vectors.
    __device__ float* matrices_of(int64_t layer) const {
        const int64_t F = p_.feedforward, before = p_.project ? kWidth * (p_.state_width + p_.column_width + 1) : 0;
        return matrices_ + before + layer * (4 * kWidth * kWidth + 2 * F * kWidth + 9 * kWidth + F);
    }
    __device__ float* vectors_of(int64_t layer) const {
        return vectors_ + kWidth + layer * Base::run_.layout.vectors();
    }

    // This warp's rows of an array.
    __device__ const typename P::Element* own(int array) const {
        return memory_.array(array) + warp_ * kTileRows * kPitch;
    }
    // 64 columns of this warp's rows, in an array and the next.
    __device__ InRows<P> own_rows(int array) const {
        return {own(array), kPitch, int(memory_.array(array + 1) - memory_.array(array))};
    }

    // Four tiles of x from `first` on, as 32 columns of an array.
    template <class M, int kNumber>
    __device__ void store_in(const M& memory, int array, const float (&x)[kNumber][4], int first) const {
        using Q = std::conditional_t<sizeof(*memory.array(0)) == 4, Tf32, Bf16>;
        for (int half = 0; half < 2; ++half)
            for (int n = 0; n < 4; ++n)
                Q::store_pair(memory.array(array) + row_in_tile(half) * M::kPitch + n * kTileColumns, lane_ % 4,
                              x[first + n][2 * half], x[first + n][2 * half + 1]);
    }
    template <int kNumber>
    __device__ void store(int array, const float (&x)[kNumber][4], int first) const {
        store_in(memory_, array, x, first);
    }
    __device__ void store_all(int array, const float (&x)[kTiles][4]) const {
        store(array, x, 0);
        store(array + 1, x, 4);
    }

    // to (16, 8 kNumber) += the product over the tile's tokens of columns `row` on of `left`, transposed, and columns
    // `column` on of `right`, which may run over into the next array. Writes columns below `limit`.
    template <class Q, int kNumber, class M>
    __device__ void outer_in(const M& memory, int left, int row, int right, int column, float* to, int64_t stride,
                             int64_t limit) const {
        const auto* a = memory.array(left + row / 32) + row % 32;
        const auto* b = memory.array(right + column / 32) + column % 32;
        float sums[kNumber][4] = {};
        for (int piece = 0; piece < pieces_; ++piece, a += kTileRows * M::kPitch, b += kTileRows * M::kPitch) {
            const typename Q::Left x = load_left_of_columns(a, M::kPitch);
            uint32_t units[kNumber][Q::kUnitWords];
            for (int n = 0; n < kNumber; ++n) load_unit_of_columns(b + n * kTileColumns, M::kPitch, units[n]);
            Q::add(sums, x, units);
        }
        for (int n = 0; n < kNumber; ++n)
            for (int i = 0; i < 4; ++i) {
                const int at = Base::first_column(n) + i % 2;
                if (at < limit) to[(lane_ / 4 + i / 2 * 8) * stride + at] += sums[n][i];
            }
    }
    template <int kNumber>
    __device__ void outer(int left, int row, int right, int column, float* to, int64_t stride, int64_t limit) const {
        outer_in<P, kNumber>(memory_, left, row, right, column, to, stride, limit);
    }

    // to (32, kWidth) += array `left`, transposed, times the kWidth columns of arrays `right` and the next.
    __device__ void add_rows_of_32(int left, int right, float* to) const {
        const int row = warp_ / 4 * 16, column = warp_ % 4 * 16;
        outer<2>(left, row, right, column, to + row * kWidth + column, kWidth, kWidth);
    }

    // to[column] += sums of the piece's rows. Lanes halve the columns at each step and end with one each of every 32.
    template <int kNumber>
    __device__ void add_sums(const float (&x)[kNumber][4], float* to) const {
#pragma unroll
        for (int first = 0; first < kNumber; first += 4) {
            float sums[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[i] = x[first + i / 2][i % 2] + x[first + i / 2][i % 2 + 2];
            int number = 0;
#pragma unroll
            for (int step = 4, left = 4; left > 0; step *= 2, left /= 2) {
                const bool upper = lane_ & step;
                number = 2 * number + upper;
#pragma unroll
                for (int i = 0; i < left; ++i) {
                    const float other = __shfl_xor_sync(kWholeWarp, upper ? sums[i] : sums[i + left], step);
                    sums[i] = (upper ? sums[i + left] : sums[i]) + other;
                }
            }
            to[Base::first_column(first + number / 2) + number % 2] += sums[0];
        }
    }

    // grad_tokens = x, whose column 0 is column `first` of the tokens' columns; first < 0: of the states before them.
    template <int kNumber>
    __device__ void write_tokens(const float (&x)[kNumber][4], int first) const {
        for (int half = 0; half < 2; ++half) {
            if (!active() || row(half) >= length_) continue;
            float* to = back_.grad_tokens +
                        (policy_ * p_.subsets * p_.subset_size + Base::token() + row(half)) * p_.column_width;
            for (int n = 0; n < kNumber; ++n)
                for (int i = 0; i < 2; ++i) {
                    const int column = first + Base::first_column(n) + i;
                    if (column >= 0 && column < p_.column_width) to[column] = x[n][2 * half + i];
                }
        }
    }
};

}  // namespace sopr::cuda
