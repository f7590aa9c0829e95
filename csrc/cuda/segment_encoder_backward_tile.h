// The backward pass of a tile, layer by layer, from what the forward pass left on its tape. As forward, each warp has
// its 16 tokens in registers; it shares operands of products over tokens with the others, in arrays of BackwardMemory.
//
// Gradients of parameters are added up in global memory by block (matrices) or by warp (vectors), in the order of
// tiles.
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

template <class P, int kDim>
class BackwardTile : public Tile<P, kDim, Tape> {
    using Base = Tile<P, kDim, Tape>;
    using Element = typename P::Element;
    using Memory = BackwardMemory<P>;
    static constexpr int kTiles = Base::kTiles, kPitch = Memory::kPitch, kHeads = 32 / kDim;
    using Base::lane_;
    using Base::length_;
    using Base::p_;
    using Base::policy_;
    using Base::row;
    using Base::row_in_tile;
    using Base::tape_;
    using Base::warp_;

  public:
    using Base::active;

    __device__ BackwardTile(const BackwardRun& run, const TileMemory<P>& memory, int64_t policy, int64_t tile,
                            const Tape& tape)
        : Base(run.forward, memory, policy, tile, tape), back_(run) {
        const Piece* pieces = run.forward.tiles.pieces + tile * kTileWarps;
        while (pieces_ < kTileWarps && pieces[pieces_].segment >= 0) ++pieces_;
    }

    __device__ void read_grad() {
        for (int half = 0; half < 2; ++half) {
            const bool inside = active() && row(half) < length_;
            const int64_t token = policy_ * p_.subsets * p_.subset_size + Base::token_ + row(half);
            const int64_t index = p_.pool ? Base::segment() : token;
            const float scale = p_.pool && inside ? 1.0f / float(length_) : 1.0f;
            for (int n = 0; n < kTiles; ++n)
                for (int i = 0; i < 2; ++i)
                    grad[n][2 * half + i] =
                        inside ? back_.grad_out[index * kWidth + Base::first_column(n) + i] * scale : 0.0f;
        }
    }

    // From the gradient of the layer's output to that of what its feed-forward block reads.
    __device__ void feed_forward(int64_t layer, WeightStream& weights) {
        const int64_t F = p_.feedforward;
        const float* bias = Base::vectors(layer) + 6 * kWidth;
        float branch[kTiles][4], middle[kTiles][4];
        __syncthreads();  // earlier readers of the arrays are done
        if (active()) {
            norm_backward(layer, 1, 7 * kWidth + F);
            copy(grad, branch);
            Base::drop(layer, kAfterFeedForward, 0, branch);
            add_sums(branch, vectors_of(layer) + 6 * kWidth + F);
            output_of_norm(layer, 0, middle);
            store(0, branch, 0);
            store(1, branch, 4);
            store(2, middle, 0);
            store(3, middle, 4);
        }
        for (int64_t part = 0; part < F; part += 32) {
            const uint32_t* chunk = weights.next();
            float hidden[4][4] = {}, grad_hidden[4][4] = {};
            if (active()) {
                add_product<P, 4, 4>(hidden, middle, chunk);
                Base::add_bias(bias + part, hidden);
                Base::rectify(hidden);
                Base::drop(layer, kInsideFeedForward, part / kTileColumns, hidden);
            }
            chunk = weights.next();
            if (active()) {
                add_product<P, 4, 4>(grad_hidden, branch, chunk);
                const float scale = Base::site(layer, kInsideFeedForward).scale;
                for (int n = 0; n < 4; ++n)
                    for (int i = 0; i < 4; ++i) grad_hidden[n][i] *= hidden[n][i] > 0 ? scale : 0.0f;
                add_sums(grad_hidden, vectors_of(layer) + 6 * kWidth + part);
                store(4, hidden, 0);
                store(5, grad_hidden, 0);
            }
            chunk = weights.next();
            if (active()) add_product<P, kTiles, 2>(grad, grad_hidden, chunk);
            float* up = matrices_of(layer) + 4 * kWidth * kWidth + 6 * kWidth;
            float* down = up + F * kWidth + F;
            const int row = warp_ / 2 * 16, column = warp_ % 2 * 16;
            outer<2>(0, row, 4, column, down + row * F + part + column, F, F);
            add_rows_of_32(5, 2, up + part * kWidth);
        }
    }

    // From there to the gradient of the attended values' projection, which stays in `branch`; that of the residual in
    // `grad`.
    __device__ void out_projection(int64_t layer) {
        __syncthreads();
        if (active()) {
            norm_backward(layer, 0, 4 * kWidth);
            copy(grad, branch);
            Base::drop(layer, kAfterAttention, 0, branch);
            add_sums(branch, vectors_of(layer) + 3 * kWidth);
            float attended[kTiles][4];
            tape_.attended(layer, 0, attended);
            store(0, branch, 0);
            store(1, branch, 4);
            store(2, attended, 0);
            store(3, attended, 4);
        }
        __syncthreads();
        float* out = matrices_of(layer) + 3 * kWidth * kWidth + 3 * kWidth;
        const int row = warp_ / 2 * 16, column = warp_ % 2 * 32;
        outer<4>(0, row, 2, column, out + row * kWidth + column, kWidth, kWidth);
    }

    // Write queries, keys, values, gradients of attended values and statistics of heads in 32 columns to shared memory.
    __device__ void make_operands(int64_t layer, int column, WeightStream& weights) {
        __syncthreads();
        float x[kTiles][4], gradients[4][4];
        if (active()) layer_input(layer, x);
        for (int i = 0; i < 3; ++i) {
            const uint32_t* chunk = weights.next();
            if (!active()) continue;
            float y[4][4] = {};
            add_product<P, 4, 4>(y, x, chunk);
            Base::add_bias(Base::vectors(layer) + i * kWidth + column, y);
            const float scale = i == 0 ? Base::kLog2E / sqrtf(float(kDim)) : 1.0f;
            for (int n = 0; n < 4; ++n)
                for (int k = 0; k < 4; ++k) y[n][k] *= scale;
            store(i, y, 0);
        }
        const uint32_t* chunk = weights.next();
        if (active()) {
            clear(gradients);
            add_product<P, 4, 4>(gradients, branch, chunk);
            store(Memory::kGradients, gradients, 0);
            write_statistics(layer, column, gradients);
        }
        __syncthreads();
    }

    // Gradients of queries, keys and values of 32 columns, where all rows of the segment are in this tile.
    __device__ void attention_of_tile(int64_t layer, int column) {
        clear_gradients();
        if (!active()) return;
        const int place = warp_ * kTileRows - Base::piece_.row;
        add_grad_of_queries(layer, column, memory_.array(Memory::kKeys) + place * kPitch,
                            memory_.array(Memory::kValues) + place * kPitch, length_, 0);
        add_grad_of_keys(layer, column, memory_.array(Memory::kQueries) + place * kPitch,
                         memory_.array(Memory::kGradients) + place * kPitch, memory_.statistics() + place, length_, 0);
    }

    __device__ void clear_gradients() {
        clear(dq);
        clear(dk);
        clear(dv);
    }
    // Add what `count` keys or queries contribute, numbers `first` on of the segment.
    __device__ void add_grad_of_queries(int64_t layer, int column, const Element* keys, const Element* values,
                                        int count, int first) {
        attention(layer, column)
            .add_grad_of_queries(dq, own(Memory::kQueries), own(Memory::kGradients),
                                 memory_.statistics() + warp_ * kTileRows, keys, values, count, row(0), first);
    }
    __device__ void add_grad_of_keys(int64_t layer, int column, const Element* queries, const Element* gradients,
                                     const RowStatistics* statistics, int count, int first) {
        attention(layer, column)
            .add_grad_of_keys(dk, dv, own(Memory::kKeys), own(Memory::kValues), queries, gradients, statistics, count,
                              Base::piece_.row, first);
    }

    // Add to `grad` what comes through queries, keys and values of 32 columns.
    __device__ void in_projection(int64_t layer, int column, WeightStream& weights) {
        __syncthreads();
        if (active()) {
            const float scale[] = {1.0f / sqrtf(float(kDim)), 1.0f / Base::kLog2E, 1.0f};
            for (int half = 0; half < 2; ++half) {
                const bool inside = row(half) < length_;
                for (int n = 0; n < 4; ++n)
                    for (int i = 2 * half; i < 2 * half + 2; ++i) {
                        dq[n][i] = inside ? dq[n][i] * scale[0] : 0.0f;
                        dk[n][i] = inside ? dk[n][i] * scale[1] : 0.0f;
                        dv[n][i] = inside ? dv[n][i] : 0.0f;
                    }
            }
            float x[kTiles][4];
            layer_input(layer, x);
            store(0, dq, 0);
            store(1, dk, 0);
            store(2, dv, 0);
            store(4, x, 0);
            store(5, x, 4);
            float* sums = vectors_of(layer) + column;
            add_sums(dq, sums);
            add_sums(dk, sums + kWidth);
            add_sums(dv, sums + 2 * kWidth);
        }
        const uint32_t* chunk = weights.next();  // includes a barrier
        if (active()) add_product<P, kTiles, 2>(grad, dq, chunk);
        chunk = weights.next();
        if (active()) add_product<P, kTiles, 2>(grad, dk, chunk);
        chunk = weights.next();
        if (active()) add_product<P, kTiles, 2>(grad, dv, chunk);
        for (int i = 0; i < 3; ++i) add_rows_of_32(i, 4, matrices_of(layer) + (i * kWidth + column) * kWidth);
    }

    // From the gradient of the first layer's input to those of the projection and of the tokens.
    __device__ void projection() {
        if (!p_.project) {
            if (back_.grad_tokens) write_tokens(grad, -int(p_.state_width));
            return;
        }
        using Wide = BackwardMemory<Tf32>;
        const Wide wide{};
        __syncthreads();
        if (active()) {
            float x[kTiles][4];
            tape_.input(x);
            for (int n = 0; n < kTiles; ++n)
                for (int i = 0; i < 4; ++i) grad[n][i] = x[n][i] > 0 ? grad[n][i] : 0.0f;
            add_sums(grad, vectors_);
            store_in(wide, 0, grad, 0);
            store_in(wide, 1, grad, 4);
        }
        const int64_t inputs = p_.state_width + p_.column_width;
        const int64_t states[2] = {active() ? Base::state_of(0) : -1, active() ? Base::state_of(1) : -1};
        for (int64_t first = 0; first < inputs; first += 32) {
            __syncthreads();
            if (active()) {
                float x[4][4];
                for (int n = 0; n < 4; ++n) Base::read_columns(states, first + n * kTileColumns, x[n]);
                store_in(wide, 2, x, 0);
            }
            __syncthreads();
            const int row = warp_ / 2 * 16, column = warp_ % 2 * 16;
            outer_in<Tf32, 2>(wide, 0, row, 2, column, matrices_ + row * inputs + first + column, inputs,
                              inputs - first - column);
        }
        if (!back_.grad_tokens || !active()) return;
        const uint32_t* units = Base::run_.packed + Base::run_.layout.before_columns();
        for (int64_t first = 0; first < p_.column_width; first += 32, units += kWordsOfColumns) {
            float y[4][4] = {};
            add_product<Tf32, 4, 4>(y, grad, units);
            write_tokens(y, int(first));
        }
    }

    // Keep or get the gradient between kernels.
    __device__ void save_grad(float* to) const {
        for (int n = 0; n < kTiles; ++n)
            reinterpret_cast<float4*>(to)[n * kTileThreads + threadIdx.x] =
                make_float4(grad[n][0], grad[n][1], grad[n][2], grad[n][3]);
    }
    __device__ void restore_grad(const float* from) {
        for (int n = 0; n < kTiles; ++n) {
            const float4 x = reinterpret_cast<const float4*>(from)[n * kTileThreads + threadIdx.x];
            grad[n][0] = x.x, grad[n][1] = x.y, grad[n][2] = x.z, grad[n][3] = x.w;
        }
    }

  private:
    const BackwardRun& back_;
    const Memory memory_{};
    int pieces_ = 0;  // in the tile
    float* const matrices_ = back_.matrices + blockIdx.x * back_.parameters;
    float* const vectors_ = back_.vectors + (blockIdx.x * kTileWarps + warp_) * back_.vector_entries;
    float grad[kTiles][4], branch[kTiles][4], dq[4][4], dk[4][4], dv[4][4];

    template <int kNumber>
    __device__ static void clear(float (&x)[kNumber][4]) {
        for (int n = 0; n < kNumber; ++n) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
    }
    __device__ static void copy(const float (&from)[kTiles][4], float (&to)[kTiles][4]) {
        for (int n = 0; n < kTiles; ++n)
            for (int i = 0; i < 4; ++i) to[n][i] = from[n][i];
    }

    // Where this block adds gradients of the layer's matrices, and this warp those of its vectors.
    __device__ float* matrices_of(int64_t layer) const {
        const int64_t F = p_.feedforward, before = p_.project ? kWidth * (p_.state_width + p_.column_width + 1) : 0;
        return matrices_ + before + layer * (4 * kWidth * kWidth + 2 * F * kWidth + 9 * kWidth + F);
    }
    __device__ float* vectors_of(int64_t layer) const {
        return vectors_ + kWidth + layer * Base::run_.layout.vectors();
    }

    __device__ AttentionBackward<P, kDim> attention(int64_t layer, int column) const {
        return {Base::dropout(layer, kAttentionWeights), Base::segment(), column / kDim};
    }
    __device__ const Element* own(int array) const { return memory_.array(array) + warp_ * kTileRows * kPitch; }

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

    // grad = gradient of the values that norm 0 or 1 reads; adds those of its weight and bias, entries `vector` on.
    __device__ void norm_backward(int64_t layer, int norm, int64_t vector) {
        const float* weight = Base::vectors(layer) + vector;
        float normal[kTiles][4], product[kTiles][4];
        tape_.normal(layer, norm, normal);
        const float2 inverses = tape_.inverse(layer, norm);
        for (int n = 0; n < kTiles; ++n)
            for (int i = 0; i < 4; ++i) product[n][i] = grad[n][i] * normal[n][i];
        add_sums(product, vectors_of(layer) + vector);
        add_sums(grad, vectors_of(layer) + vector + kWidth);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = 0, correlation = 0;
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                const float2 w = *reinterpret_cast<const float2*>(weight + Base::first_column(n));
                grad[n][2 * half] *= w.x;
                grad[n][2 * half + 1] *= w.y;
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    sum += grad[n][i];
                    correlation = fmaf(grad[n][i], normal[n][i], correlation);
                }
            }
            sum = quad_sum(sum) * (1.0f / kWidth);
            correlation = quad_sum(correlation) * (1.0f / kWidth);
            const float inverse = half ? inverses.y : inverses.x;
#pragma unroll
            for (int n = 0; n < kTiles; ++n)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i)
                    grad[n][i] = inverse * (grad[n][i] - sum - normal[n][i] * correlation);
        }
    }

    // x = output of norm 0 or 1 of a layer.
    __device__ void output_of_norm(int64_t layer, int norm, float (&x)[kTiles][4]) const {
        const float* weight = Base::vectors(layer) + (norm ? 7 * kWidth + p_.feedforward : 4 * kWidth);
        tape_.normal(layer, norm, x);
        for (int n = 0; n < kTiles; ++n) {
            const float2 w = *reinterpret_cast<const float2*>(weight + Base::first_column(n));
            const float2 b = *reinterpret_cast<const float2*>(weight + kWidth + Base::first_column(n));
            for (int half = 0; half < 2; ++half) {
                x[n][2 * half] = x[n][2 * half] * w.x + b.x;
                x[n][2 * half + 1] = x[n][2 * half + 1] * w.y + b.y;
            }
        }
    }
    __device__ void layer_input(int64_t layer, float (&x)[kTiles][4]) const {
        if (layer == 0)
            tape_.input(x);
        else
            output_of_norm(layer - 1, 1, x);
    }

    __device__ void write_statistics(int64_t layer, int column, const float (&gradients)[4][4]) const {
        float attended[4][4];
        tape_.attended(layer, column, attended);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
            const HeadStatistics head = tape_.statistics(layer, column / kDim + h);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float mean = 0;
#pragma unroll
                for (int n = h * kDim / 8; n < (h + 1) * kDim / 8; ++n)
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; ++i)
                        mean = fmaf(attended[n][i], P::rounded(gradients[n][i]), mean);
                mean = quad_sum(mean);
                if (lane_ % 4 == 0)
                    memory_.statistics()[h * kTileTokens + row_in_tile(half)] = {head.maximum[half], head.inverse[half],
                                                                                 mean};
            }
        }
    }

    // grad_tokens = x, whose column 0 is column `first` of the tokens' columns; first < 0: of the states before them.
    template <int kNumber>
    __device__ void write_tokens(const float (&x)[kNumber][4], int first) const {
        for (int half = 0; half < 2; ++half) {
            if (!active() || row(half) >= length_) continue;
            float* to = back_.grad_tokens +
                        (policy_ * p_.subsets * p_.subset_size + Base::token_ + row(half)) * p_.column_width;
            for (int n = 0; n < kNumber; ++n)
                for (int i = 0; i < 2; ++i) {
                    const int column = first + Base::first_column(n) + i;
                    if (column >= 0 && column < p_.column_width) to[column] = x[n][2 * half + i];
                }
        }
    }
};

}  // namespace sopr::cuda
