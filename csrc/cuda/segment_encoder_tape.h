// What the backward pass keeps of a tile's forward pass, and of itself. Every lane reads back what it wrote itself.
#pragma once

#include "cuda/segment_encoder_plan.h"

namespace sopr::cuda {

// The forward pass alone keeps nothing.
struct NoTape {
    template <int kTiles>
    __device__ void keep_input(const float (&)[kTiles][4]) const {}
    template <class Attention>
    __device__ void keep_attention(int64_t, int, const Attention&) const {}
    template <int kTiles>
    __device__ void keep_norm(int64_t, int, const float (&)[2], const float (&)[kTiles][4]) const {}
};

// Statistics of a head for rows g and g + 8: the largest score and 1 / sum(exp2(score - largest)).
struct HeadStatistics {
    float maximum[2], inverse[2];
};

class Tape {
  public:
    // Floats of a tile.
    SOPR_INLINE static int64_t floats(int64_t layers, int64_t heads) {
        return (kInput + layers * entries(heads)) * kFloatsOfEntry;
    }

    __device__ Tape(float* memory, int64_t heads)
        : memory_(reinterpret_cast<float4*>(memory) + threadIdx.x), per_layer_(entries(heads)) {}

    __device__ void keep_input(const float (&x)[8][4]) const { keep(0, x); }
    __device__ void input(float (&x)[8][4]) const { get(0, x); }

    // Keeps attention of the heads in columns `column` to `column` + 32.
    template <class Attention>
    __device__ void keep_attention(int64_t layer, int column, const Attention& a) const {
        keep(of_layer(layer) + column / kTileColumns, a.out);
        for (int h = 0; h < Attention::kHeads; ++h)
            entry(of_layer(layer) + kStatistics + column / 32 * Attention::kHeads + h) =
                make_float4(a.maximum[h][0], a.maximum[h][1], 1.0f / a.total[h][0], 1.0f / a.total[h][1]);
    }
    template <int kTiles>
    __device__ void attended(int64_t layer, int column, float (&x)[kTiles][4]) const {
        get(of_layer(layer) + column / kTileColumns, x);
    }
    __device__ HeadStatistics statistics(int64_t layer, int head) const {
        const float4 s = entry(of_layer(layer) + kStatistics + head);
        return {{s.x, s.y}, {s.z, s.w}};
    }

    // Keeps the normalised values of norm 0 or 1, and 1 / standard deviation of rows g and g + 8.
    __device__ void keep_norm(int64_t layer, int norm, const float (&inverse)[2], const float (&normal)[8][4]) const {
        keep(of_layer(layer) + kNorms + norm * 8, normal);
        entry(of_layer(layer) + kInverses + norm) = make_float4(inverse[0], inverse[1], 0, 0);
    }
    __device__ void normal(int64_t layer, int norm, float (&x)[8][4]) const {
        get(of_layer(layer) + kNorms + norm * 8, x);
    }
    __device__ float2 inverse(int64_t layer, int norm) const {
        const float4 both = entry(of_layer(layer) + kInverses + norm);
        return make_float2(both.x, both.y);
    }

    // The backward pass keeps its gradients in place of norms that it has passed: of what the layer reads, or the
    // residual before; and of the branch of attention.
    __device__ void keep_gradient(int64_t layer, const float (&x)[8][4]) const { keep(of_layer(layer) + kNorms, x); }
    __device__ void gradient(int64_t layer, float (&x)[8][4]) const { get(of_layer(layer) + kNorms, x); }
    __device__ void keep_branch(int64_t layer, const float (&x)[8][4]) const { keep(of_layer(layer) + kNorms + 8, x); }
    __device__ void branch(int64_t layer, float (&x)[8][4]) const { get(of_layer(layer) + kNorms + 8, x); }

  private:
    // Entries are float4s of all threads: the input; then, of each layer, attended values, norms, inverses, statistics.
    static constexpr int kTileThreads = kTileWarps * kWarpSize, kFloatsOfEntry = 4 * kTileThreads;
    static constexpr int kInput = 8, kNorms = 8, kInverses = 24, kStatistics = 26;

    float4* memory_;
    int64_t per_layer_;

    SOPR_INLINE static int64_t entries(int64_t heads) { return kStatistics + heads; }
    __device__ int64_t of_layer(int64_t layer) const { return kInput + layer * per_layer_; }
    __device__ float4& entry(int64_t i) const { return memory_[i * kTileThreads]; }

    template <int kTiles>
    __device__ void keep(int64_t first, const float (&x)[kTiles][4]) const {
        for (int n = 0; n < kTiles; ++n) entry(first + n) = make_float4(x[n][0], x[n][1], x[n][2], x[n][3]);
    }
    template <int kTiles>
    __device__ void get(int64_t first, float (&x)[kTiles][4]) const {
        for (int n = 0; n < kTiles; ++n) {
            const float4 four = entry(first + n);
            x[n][0] = four.x, x[n][1] = four.y, x[n][2] = four.z, x[n][3] = four.w;
        }
    }
};

}  // namespace sopr::cuda
