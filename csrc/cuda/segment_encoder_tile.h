// A tile of the encoder: each warp keeps its 16 tokens in registers through all steps of the layers, and shares only
// keys and values with other warps. The warps of a block make the same calls, those without a piece too.
//
// A lane holds rows g and g + 8 of its piece (g = lane / 4), two adjacent columns of every eight: tiles of
// segment_encoder_products.h.
#pragma once

#include "cuda/segment_encoder_attention.h"
#include "cuda/segment_encoder_stream.h"
#include "cuda/segment_encoder_tape.h"

namespace sopr::cuda {

struct EncoderRun {
    SegmentEncoder p;
    PackedWeights layout;
    const uint32_t* packed;
    Tiles tiles;
    int64_t first_policy, policies;
};

// A block's shared memory.
template <class P>
struct TileMemory {
    using Element = typename P::Element;
    static constexpr int kKeyPitch = kWidth + 16 / int(sizeof(Element));  // 16 bytes more avoid bank conflicts
    static constexpr int kValuePitch = kTileTokens + 16 / int(sizeof(Element));
    static constexpr int kImage = (kTileTokens * kKeyPitch + kWidth * kValuePitch) * int(sizeof(Element));  // bytes
    static constexpr int kFixed = kImage + kTileWarps * kWidth * int(sizeof(float));

    Element *keys, *values;  // (token, column) and (column, token), eights in the order of P::place
    float* sums;             // (warp, column)
    uint32_t* slots;         // of WeightStream

    __device__ TileMemory()
        : keys(reinterpret_cast<Element*>(dynamic_shared())),
          values(keys + kTileTokens * kKeyPitch),
          sums(reinterpret_cast<float*>(dynamic_shared() + kImage)),
          slots(reinterpret_cast<uint32_t*>(dynamic_shared() + kFixed)) {}
};

template <class P, int kDim, class Kept = NoTape>
class Tile {
  public:
    static constexpr int kTiles = kWidth / kTileColumns;
    static constexpr float kLog2E = 1.44269504088896341f;

    __device__ Tile(const EncoderRun& run, const TileMemory<P>& memory, int64_t policy, int64_t tile,
                    const Kept& tape = {})
        : run_(run), p_(run.p), memory_(memory), tape_(tape), policy_(policy) {
        piece_ = run.tiles.pieces[tile * kTileWarps + warp_];
        if (!active()) return;
        length_ = bounds()[1] - bounds()[0];
    }

    __device__ bool active() const { return piece_.segment >= 0; }
    __device__ const Piece& piece() const { return piece_; }
    __device__ int length() const { return length_; }

    // x = inputs of the layers.
    __device__ void read_input() {
        if (!active()) return;
        const int64_t rows[2] = {state_of(0), state_of(1)};
        if (!p_.project) {
            for (int n = 0; n < kTiles; ++n) read_columns(rows, n * kTileColumns, x[n]);
            tape_.keep_input(x);
            return;
        }
        for (int n = 0; n < kTiles; ++n) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0;
        const uint32_t* units = run_.packed;
        for (int u = 0; u < run_.layout.units_of_inputs; ++u, units += kTiles * kWarpSize * Tf32::kUnitWords) {
            float inputs[2][4];
            read_columns(rows, u * kUnitDepth, inputs[0]);
            read_columns(rows, u * kUnitDepth + kTileColumns, inputs[1]);
            add_product<Tf32, kTiles, 1>(x, inputs, units);
        }
        add_bias(reinterpret_cast<const float*>(run_.packed) + run_.layout.projection_words(), x);
        rectify(x);
        tape_.keep_input(x);
    }

    // Write keys and values of the layer to shared memory, after all warps have read those before.
    __device__ void make_keys_and_values(int64_t layer, WeightStream<P>& weights) {
        __syncthreads();
        for (int c = 0; c < 4; ++c) {
            const uint32_t* chunk = weights.next();
            if (!active()) continue;
            float y[4][4] = {};
            add_product<P, 4, 4>(y, x, chunk);
            add_bias(vectors(layer) + kWidth + 32 * c, y);
            if (c < 2)
                store_keys(32 * c, y);
            else
                store_values(32 * c - kWidth, y);
        }
        __syncthreads();
    }

    // x after the layer's attention, where attend(attention, q, column) adds all keys for the heads from a column on.
    template <class Attend>
    __device__ void attend(int64_t layer, WeightStream<P>& weights, const Attend& attend) {
        float sums[kTiles][4] = {};
        for (int column = 0; column < kWidth; column += 32) {
            const uint32_t* chunk = weights.next();
            float q[4][4] = {};
            if (active()) {
                add_product<P, 4, 4>(q, x, chunk);
                add_bias(vectors(layer) + column, q);
                const float scale = kLog2E / sqrtf(float(kDim));
                for (int n = 0; n < 4; ++n)
                    for (int i = 0; i < 4; ++i) q[n][i] *= scale;
            }
            Attention<P, kDim> attention;
            attend(attention, q, column);
            if (active()) {
                attention.finish(site(layer, kAttentionWeights).scale);
                tape_.keep_attention(layer, column, attention);
            }
            chunk = weights.next();
            if (active()) add_product<P, kTiles, 2>(sums, attention.out, chunk);
        }
        if (!active()) return;
        const float* v = vectors(layer) + 3 * kWidth;
        add_bias(v, sums);
        drop(layer, kAfterAttention, 0, sums);
        add_norm(layer, 0, v + kWidth, v + 2 * kWidth, sums);
    }

    // The same with the keys in this block's shared memory.
    __device__ void attend_to_tile(int64_t layer, WeightStream<P>& weights) {
        attend(layer, weights, [&](auto& attention, const auto& q, int column) {
            if (active())
                add_keys(attention, q, column, layer, int(threadIdx.x / kWarpSize) * kTileRows - piece_.row, 0,
                         length_);
        });
    }

    // Attend to `count` keys from place `place` of shared memory on, numbers `key` on of the segment.
    __device__ void add_keys(Attention<P, kDim>& attention, const float (&q)[4][4], int column, int64_t layer,
                             int place, int key, int count) const {
        const KeysAndValues<P> from{memory_.keys + place * memory_.kKeyPitch + column,
                                    memory_.values + column * memory_.kValuePitch + place, memory_.kKeyPitch,
                                    memory_.kValuePitch};
        attention.add(q, from, count, dropout(layer, kAttentionWeights), segment(), column / kDim, row(0), key);
    }

    // x after the layer.
    __device__ void feed_forward(int64_t layer, WeightStream<P>& weights) {
        const int64_t F = p_.feedforward;
        const float* v = vectors(layer) + 6 * kWidth;
        float sums[kTiles][4] = {};
        for (int64_t part = 0; part < F; part += 32) {
            const uint32_t* chunk = weights.next();
            float hidden[4][4] = {};
            if (active()) {
                add_product<P, 4, 4>(hidden, x, chunk);
                add_bias(v + part, hidden);
                rectify(hidden);
                drop(layer, kInsideFeedForward, part / kTileColumns, hidden);
            }
            chunk = weights.next();
            if (active()) add_product<P, kTiles, 2>(sums, hidden, chunk);
        }
        if (!active()) return;
        add_bias(v + F, sums);
        drop(layer, kAfterFeedForward, 0, sums);
        add_norm(layer, 1, v + F + kWidth, v + F + 2 * kWidth, sums);
    }

    // Tokens of the encoder's output.
    __device__ void write_tokens() const {
        if (!active()) return;
        for (int half = 0; half < 2; ++half) {
            if (row(half) >= length_) continue;
            write_row(p_.out + (policy_ * p_.subsets * p_.subset_size + token() + row(half)) * kWidth, half);
        }
    }

    // sums (warp, column) in shared memory = sums of this piece's rows.
    __device__ void sum_rows() const {
        if (!active()) return;
        for (int n = 0; n < kTiles; ++n)
            for (int i = 0; i < 2; ++i) {
                float sum = (row(0) < length_ ? x[n][i] : 0.0f) + (row(1) < length_ ? x[n][i + 2] : 0.0f);
                for (int step = 4; step < kWarpSize; step *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
                if (lane_ / 4 == 0) memory_.sums[warp_ * kWidth + n * kTileColumns + 2 * lane_ + i] = sum;
            }
    }

    // Means of the segments in this tile.
    __device__ void write_means() const {
        sum_rows();
        __syncthreads();
        if (!active() || piece_.row != 0) return;
        const int pieces = (length_ + kTileRows - 1) / kTileRows;
        const float weight = 1.0f / float(length_);
        float* out = p_.out + (policy_ * p_.subsets * p_.clusters + piece_.segment) * kWidth;
        for (int column = lane_; column < kWidth; column += kWarpSize) {
            float sum = 0;
            for (int i = 0; i < pieces; ++i) sum += memory_.sums[(warp_ + i) * kWidth + column];
            out[column] = sum * weight;
        }
    }

    // Keep x between kernels; (kTileTokens, kWidth).
    __device__ void save(float* to) const {
        for (int half = 0; active() && half < 2; ++half) write_row(to + row_in_tile(half) * kWidth, half);
    }
    __device__ void restore(const float* from) {
        for (int half = 0; active() && half < 2; ++half)
            for (int n = 0; n < kTiles; ++n) {
                const float2 pair =
                    *reinterpret_cast<const float2*>(from + row_in_tile(half) * kWidth + first_column(n));
                x[n][2 * half] = pair.x;
                x[n][2 * half + 1] = pair.y;
            }
    }

  protected:
    const EncoderRun& run_;
    const SegmentEncoder& p_;
    const TileMemory<P>& memory_;
    const Kept tape_;
    const int64_t policy_;
    const int lane_ = threadIdx.x % kWarpSize, warp_ = threadIdx.x / kWarpSize;
    Piece piece_;
    int length_ = 0;
    float x[kTiles][4];

    __device__ int subset() const { return piece_.segment / int(p_.clusters); }
    __device__ const int32_t* bounds() const {  // subset * (K + 1) + cluster
        return p_.offsets + piece_.segment + subset();
    }
    // The segment's first row in p.rows. Not kept, since that takes registers through all layers.
    __device__ int64_t token() const { return subset() * p_.subset_size + bounds()[0]; }
    __device__ int row(int half) const { return piece_.row + lane_ / 4 + 8 * half; }  // in the segment
    __device__ int row_in_tile(int half) const { return warp_ * kTileRows + lane_ / 4 + 8 * half; }
    __device__ int first_column(int n) const { return n * kTileColumns + lane_ % 4 * 2; }
    __device__ int64_t segment() const { return policy_ * p_.subsets * p_.clusters + piece_.segment; }

    __device__ const float* vectors(int64_t layer) const {
        const PackedWeights& w = run_.layout;
        return reinterpret_cast<const float*>(run_.packed) + w.before_layers() + layer * w.vectors();
    }

    __device__ Dropout dropout(int64_t layer, Site where) const {
        Dropout d = p_.dropout;
        d.layer = uint32_t(layer);
        d.site = where;
        return d;
    }
    __device__ DropoutSite site(int64_t layer, Site where) const { return {dropout(layer, where), segment()}; }

    template <int kNumber>
    __device__ void drop(int64_t layer, Site where, int64_t block, float (&values)[kNumber][4]) const {
        const DropoutSite place = site(layer, where);
        drop_tiles(place, row(0), block, place.scale, values);
    }

    // The state of a row, -1 after the last.
    __device__ int64_t state_of(int half) const { return row(half) < length_ ? p_.rows[token() + row(half)] : -1; }

    __device__ float input(int64_t state, int64_t column) const {
        if (state < 0 || column >= p_.state_width + p_.column_width) return 0;
        if (column < p_.state_width) return p_.states[state * p_.state_width + column];
        return p_.columns[(policy_ * p_.states_count + state) * p_.column_width + column - p_.state_width];
    }
    __device__ void read_columns(const int64_t (&states)[2], int64_t column, float (&to)[4]) const {
        for (int i = 0; i < 4; ++i) to[i] = input(states[i / 2], column + lane_ % 4 * 2 + i % 2);
    }

    template <int kNumber>
    __device__ void add_bias(const float* bias, float (&values)[kNumber][4]) const {
#pragma unroll
        for (int n = 0; n < kNumber; ++n) {
            const float2 pair = *reinterpret_cast<const float2*>(bias + first_column(n));
            values[n][0] += pair.x, values[n][1] += pair.y, values[n][2] += pair.x, values[n][3] += pair.y;
        }
    }

    template <int kNumber>
    __device__ static void rectify(float (&values)[kNumber][4]) {
#pragma unroll
        for (int n = 0; n < kNumber; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) values[n][i] = values[n][i] < 0 ? 0.0f : values[n][i];  // keeps NaN
    }

    // x = norm(x + branch).
    __device__ void add_norm(int64_t layer, int norm, const float* weight, const float* bias,
                             float (&branch)[kTiles][4]) {
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = 0, squares = 0;
#pragma unroll
            for (int n = 0; n < kTiles; ++n)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) sum += branch[n][i] += x[n][i];
            const float mean = quad_sum(sum) * (1.0f / kWidth);
#pragma unroll
            for (int n = 0; n < kTiles; ++n)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    const float off = branch[n][i] - mean;
                    squares = fmaf(off, off, squares);
                }
            const float scale = 1.0f / sqrtf(quad_sum(squares) * (1.0f / kWidth) + 1e-5f);
#pragma unroll
            for (int n = 0; n < kTiles; ++n) {
                const float2 w = *reinterpret_cast<const float2*>(weight + first_column(n));
                const float2 b = *reinterpret_cast<const float2*>(bias + first_column(n));
                branch[n][2 * half] = (branch[n][2 * half] - mean) * scale;
                branch[n][2 * half + 1] = (branch[n][2 * half + 1] - mean) * scale;
                x[n][2 * half] = branch[n][2 * half] * w.x + b.x;
                x[n][2 * half + 1] = branch[n][2 * half + 1] * w.y + b.y;
            }
            inverse[half] = scale;
        }
        tape_.keep_norm(layer, norm, inverse, branch);
    }

    __device__ void store_keys(int column, const float (&y)[4][4]) const {
        for (int half = 0; half < 2; ++half)
            for (int n = 0; n < 4; ++n)
                P::store_pair(memory_.keys + row_in_tile(half) * memory_.kKeyPitch + column + n * kTileColumns,
                              lane_ % 4, y[n][2 * half], y[n][2 * half + 1]);
    }
    __device__ void store_values(int column, const float (&y)[4][4]) const {
        for (int half = 0; half < 2; ++half) {
            const int place = warp_ * kTileRows + 8 * half + P::place(lane_ / 4);
            for (int n = 0; n < 4; ++n)
                for (int i = 0; i < 2; ++i)
                    memory_.values[(column + first_column(n) + i) * memory_.kValuePitch + place] =
                        P::element(y[n][2 * half + i]);
        }
    }

    __device__ void write_row(float* to, int half) const {
        for (int n = 0; n < kTiles; ++n)
            *reinterpret_cast<float2*>(to + first_column(n)) = make_float2(x[n][2 * half], x[n][2 * half + 1]);
    }
};

}  // namespace sopr::cuda
