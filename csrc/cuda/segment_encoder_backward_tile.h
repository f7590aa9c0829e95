// The backward pass of a tile, layer by layer, from what the forward pass left on its tape. As forward, each warp has
// its 16 tokens; it shares operands of products over tokens with the others, in arrays of BackwardMemory.
//
// Phases hand values on in those arrays or on the tape, in places that are no longer needed: what a phase kept in
// registers for a later one would spill in between.
#pragma once

#include "cuda/segment_encoder_gradient_sums.h"

namespace sopr::cuda {

template <class P, int kDim>
class BackwardTile : public GradientSums<P, kDim> {
    using Base = GradientSums<P, kDim>;
    using Element = typename P::Element;
    using typename Base::Memory;
    using Gradient = float[Base::kTiles][4];
    static constexpr int kHeads = 32 / kDim;
    using Base::add_rows_of_32;
    using Base::add_sums;
    using Base::back_;
    using Base::kPitch;
    using Base::kTiles;
    using Base::lane_;
    using Base::length_;
    using Base::matrices_;
    using Base::matrices_of;
    using Base::memory_;
    using Base::own;
    using Base::own_rows;
    using Base::p_;
    using Base::policy_;
    using Base::row;
    using Base::row_in_tile;
    using Base::store;
    using Base::store_all;
    using Base::tape_;
    using Base::vectors_;
    using Base::vectors_of;
    using Base::warp_;
    using Base::write_tokens;

  public:
    using Base::active;

    __device__ BackwardTile(const BackwardRun& run, const TileMemory<P>& memory, int64_t policy, int64_t tile,
                            const Tape& tape)
        : Base(run, memory, policy, tile, tape) {}

    // From the gradient of the layer's output to that of what its feed-forward block reads; then to that of the
    // attended values' projection and of the residual, which stay on the tape.
    __device__ void blocks(int64_t layer, WeightStream<P>& weights) {
        Gradient grad;
        if (layer == p_.layers - 1)
            read_grad(grad);
        else
            tape_.gradient(layer + 1, grad);
        feed_forward(layer, weights, grad);
        out_projection(layer, grad);
    }

    // Write the layer's input to the last two arrays, which no warp may read any more.
    __device__ void store_input(int64_t layer) {
        if (!active()) return;
        float x[kTiles][4];
        layer_input(layer, x);
        store_all(Memory::kFirst, x);
    }

    // Write queries, keys, values, gradients of attended values and statistics of heads in 32 columns to shared memory,
    // where the layer's input is.
    __device__ void make_operands(int64_t layer, int column, WeightStream<P>& weights) {
        __syncthreads();
        for (int i = 0; i < 3; ++i) {
            const uint32_t* chunk = weights.next();
            if (!active()) continue;
            float y[4][4] = {};
            add_product_of<P, 4, 4>(y, own_rows(Memory::kFirst), chunk);
            Base::add_bias(Base::vectors(layer) + i * kWidth + column, y);
            const float scale = i == 0 ? Base::kLog2E / sqrtf(float(kDim)) : 1.0f;
            for (int n = 0; n < 4; ++n)
                for (int k = 0; k < 4; ++k) y[n][k] *= scale;
            store(i, y, 0);
        }
        const uint32_t* chunk = weights.next();
        if (active()) {
            float branch[kTiles][4], gradients[4][4] = {};
            tape_.branch(layer, branch);
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

    // Add what comes through queries, keys and values of 32 columns to the gradient on the tape. The layer's input is
    // in shared memory.
    __device__ void in_projection(int64_t layer, int column, WeightStream<P>& weights) {
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
            store(0, dq, 0);
            store(1, dk, 0);
            store(2, dv, 0);
            float* sums = vectors_of(layer) + column;
            add_sums(dq, sums);
            add_sums(dk, sums + kWidth);
            add_sums(dv, sums + 2 * kWidth);
        }
        Gradient grad;
        if (active()) tape_.gradient(layer, grad);
        for (int i = 0; i < 3; ++i) {
            const uint32_t* chunk = weights.next();  // includes a barrier
            if (active()) add_product_of<P, kTiles, 2>(grad, InRows<P>{own(i), kPitch}, chunk);
        }
        if (active()) tape_.keep_gradient(layer, grad);
        for (int i = 0; i < 3; ++i)
            add_rows_of_32(i, Memory::kFirst, matrices_of(layer) + (i * kWidth + column) * kWidth);
    }

    // From the gradient of the first layer's input to those of the projection and of the tokens.
    __device__ void projection() {
        Gradient grad;
        if (!p_.project) {
            if (!back_.grad_tokens || !active()) return;
            tape_.gradient(0, grad);
            write_tokens(grad, -int(p_.state_width));
            return;
        }
        using Wide = BackwardMemory<Tf32>;
        const Wide wide{};
        __syncthreads();
        if (active()) {
            float x[kTiles][4];
            tape_.gradient(0, grad);
            tape_.input(x);
            for (int n = 0; n < kTiles; ++n)
                for (int i = 0; i < 4; ++i) grad[n][i] = x[n][i] > 0 ? grad[n][i] : 0.0f;
            tape_.keep_gradient(0, grad);
            add_sums(grad, vectors_);
            Base::store_in(wide, 0, grad, 0);
            Base::store_in(wide, 1, grad, 4);
        }
        const int64_t inputs = p_.state_width + p_.column_width;
        const int64_t states[2] = {active() ? Base::state_of(0) : -1, active() ? Base::state_of(1) : -1};
        for (int64_t first = 0; first < inputs; first += 32) {
            __syncthreads();
            if (active()) {
                float x[4][4];
                for (int n = 0; n < 4; ++n) Base::read_columns(states, first + n * kTileColumns, x[n]);
                Base::store_in(wide, 2, x, 0);
            }
            __syncthreads();
            const int row = warp_ / 2 * 16, column = warp_ % 2 * 16;
            Base::template outer_in<Tf32, 2>(wide, 0, row, 2, column, matrices_ + row * inputs + first + column, inputs,
                                             inputs - first - column);
        }
        if (!back_.grad_tokens || !active()) return;
        tape_.gradient(0, grad);
        const uint32_t* units = Base::run_.packed + Base::run_.layout.before_columns();
        for (int64_t first = 0; first < p_.column_width; first += 32, units += kWordsOfColumns) {
            float y[4][4] = {};
            add_product<Tf32, 4, 4>(y, grad, units);
            write_tokens(y, int(first));
        }
    }

  private:
    float dq[4][4], dk[4][4], dv[4][4];

    __device__ static void clear(float (&x)[4][4]) {
        for (int n = 0; n < 4; ++n) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
    }

    __device__ AttentionBackward<P, kDim> attention(int64_t layer, int column) const {
        return {Base::dropout(layer, kAttentionWeights), Base::segment(), column / kDim};
    }

    __device__ void read_grad(Gradient& grad) const {
        for (int half = 0; half < 2; ++half) {
            const bool inside = active() && row(half) < length_;
            const int64_t index = !inside   ? 0
                                  : p_.pool ? Base::segment()
                                            : policy_ * p_.subsets * p_.subset_size + Base::token() + row(half);
            const float scale = p_.pool && inside ? 1.0f / float(length_) : 1.0f;
            for (int n = 0; n < kTiles; ++n)
                for (int i = 0; i < 2; ++i)
                    grad[n][2 * half + i] =
                        inside ? back_.grad_out[index * kWidth + Base::first_column(n) + i] * scale : 0.0f;
        }
    }

    // Arrays: gradient of the branch (0, 1), output of the first norm (2, 3), 32 hidden values and their gradient.
    __device__ void feed_forward(int64_t layer, WeightStream<P>& weights, Gradient& grad) {
        const int64_t F = p_.feedforward;
        const float* bias = Base::vectors(layer) + 6 * kWidth;
        __syncthreads();  // earlier readers of the arrays are done
        if (active()) {
            norm_backward(layer, 1, 7 * kWidth + F, grad);
            float x[kTiles][4];
            branch_of(grad, layer, kAfterFeedForward, x);
            add_sums(x, vectors_of(layer) + 6 * kWidth + F);
            store_all(0, x);
            output_of_norm(layer, 0, x);
            store_all(2, x);
        }
        for (int64_t part = 0; part < F; part += 32) {
            const uint32_t* chunk = weights.next();  // includes a barrier
            float hidden[4][4] = {}, grad_hidden[4][4] = {};
            if (active()) {
                add_product_of<P, 4, 4>(hidden, own_rows(2), chunk);
                Base::add_bias(bias + part, hidden);
                Base::rectify(hidden);
                Base::drop(layer, kInsideFeedForward, part / kTileColumns, hidden);
            }
            chunk = weights.next();
            if (active()) {
                add_product_of<P, 4, 4>(grad_hidden, own_rows(0), chunk);
                const float scale = Base::site(layer, kInsideFeedForward).scale;
                for (int n = 0; n < 4; ++n)
                    for (int i = 0; i < 4; ++i) grad_hidden[n][i] *= hidden[n][i] > 0 ? scale : 0.0f;
                add_sums(grad_hidden, vectors_of(layer) + 6 * kWidth + part);
                store(4, hidden, 0);
                store(5, grad_hidden, 0);
            }
            chunk = weights.next();
            if (active()) add_product_of<P, kTiles, 2>(grad, InRows<P>{own(5), kPitch}, chunk);
            float* up = matrices_of(layer) + 4 * kWidth * kWidth + 6 * kWidth;
            float* down = up + F * kWidth + F;
            const int row = warp_ / 2 * 16, column = warp_ % 2 * 16;
            Base::template outer<2>(0, row, 4, column, down + row * F + part + column, F, F);
            add_rows_of_32(5, 2, up + part * kWidth);
        }
    }

    // Arrays: gradient of the branch (0, 1), attended values (2, 3).
    __device__ void out_projection(int64_t layer, Gradient& grad) {
        __syncthreads();
        if (active()) {
            norm_backward(layer, 0, 4 * kWidth, grad);
            tape_.keep_gradient(layer, grad);
            float x[kTiles][4];
            branch_of(grad, layer, kAfterAttention, x);
            tape_.keep_branch(layer, x);
            add_sums(x, vectors_of(layer) + 3 * kWidth);
            store_all(0, x);
            tape_.attended(layer, 0, x);
            store_all(2, x);
        }
        __syncthreads();
        float* out = matrices_of(layer) + 3 * kWidth * kWidth + 3 * kWidth;
        const int row = warp_ / 2 * 16, column = warp_ % 2 * 32;
        Base::template outer<4>(0, row, 2, column, out + row * kWidth + column, kWidth, kWidth);
    }

    // to = gradient of the branch that dropout leads to the sum with gradient `grad`.
    __device__ void branch_of(const Gradient& grad, int64_t layer, Site where, float (&to)[kTiles][4]) const {
        for (int n = 0; n < kTiles; ++n)
            for (int i = 0; i < 4; ++i) to[n][i] = grad[n][i];
        Base::drop(layer, where, 0, to);
    }

    // grad = gradient of the values that norm 0 or 1 reads; adds those of its weight and bias, entries `vector` on.
    __device__ void norm_backward(int64_t layer, int norm, int64_t vector, Gradient& grad) const {
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
};

}  // namespace sopr::cuda
