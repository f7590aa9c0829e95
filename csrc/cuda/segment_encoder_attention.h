// Softmax attention of a warp's 16 queries over keys and values in shared memory, and dropout of tiles.
#pragma once

#include <cfloat>

#include "cuda/segment_encoder_products.h"
#include "dropout_site.h"

namespace sopr::cuda {

__device__ __forceinline__ void swap(uint32_t& x, uint32_t& y) {
    const uint32_t z = x;
    x = y;
    y = z;
}

// words[i] = the two draws of this lane's columns in block first + i of a row. One lane of four computes each block.
__device__ inline void draw_blocks(const DropoutSite& site, int64_t row, int64_t first, uint32_t (&words)[4]) {
    const int t = threadIdx.x % 4;
    const Philox4 own = site.bits(row, first + t);
#pragma unroll
    for (int flip = 0; flip < 4; ++flip) {  // the draws of block t ^ flip, from its lane
        const int other = t ^ flip;
        const uint32_t low = other & 1 ? own.word[1] : own.word[0], high = other & 1 ? own.word[3] : own.word[2];
        words[flip] = other & 2 ? high : low;
        if (flip) words[flip] = __shfl_xor_sync(kWholeWarp, words[flip], flip);
    }
    if (t & 1) swap(words[0], words[1]), swap(words[2], words[3]);
    if (t & 2) swap(words[0], words[2]), swap(words[1], words[3]);
}

// Drop values of tiles whose first row of this lane is `row` and whose first column is 8 * block; others times `scale`.
template <int kTiles>
__device__ void drop_tiles(const DropoutSite& site, int64_t row, int64_t block, float scale, float (&x)[kTiles][4]) {
    if (site.threshold == 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < kTiles; n += 4) {
            uint32_t words[4];
            draw_blocks(site, row + 8 * half, block + n, words);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (n + i >= kTiles) continue;
                float* values = x[n + i] + 2 * half;
                values[0] *= (words[i] & 0xFFFFu) < site.threshold ? 0.0f : scale;
                values[1] *= words[i] >> 16 < site.threshold ? 0.0f : scale;
            }
        }
}

// Sum and maximum over the four lanes that share rows.
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(kWholeWarp, x, 1);
    return x + __shfl_xor_sync(kWholeWarp, x, 2);
}
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 1));
    return fmaxf(x, __shfl_xor_sync(kWholeWarp, x, 2));
}

// scores += x (16, kDim) rows^T for 8 kBlocks rows in shared memory; x is a left operand.
template <class P, int kDim, int kBlocks, class Operand>
__device__ __forceinline__ void add_scores(float (&scores)[kBlocks][4], const Operand& x,
                                           const typename P::Element* rows, int pitch) {
    if constexpr (kDim == 8) {
        uint32_t halves[kBlocks][2];
        for (int n = 0; n < kBlocks; ++n) load_unit_of_rows<P>(rows + n * kTileColumns * pitch, pitch, halves[n]);
        P::add(scores, x.half(), halves);
    } else {
#pragma unroll
        for (int u = 0; u < kDim / kUnitDepth; ++u) {
            const typename P::Left a = x.unit(u);
            uint32_t units[kBlocks][P::kUnitWords];
            for (int n = 0; n < kBlocks; ++n)
                load_unit_of_rows<P>(rows + n * kTileColumns * pitch + u * kUnitDepth, pitch, units[n]);
            P::add(scores, a, units);
        }
    }
}

// Keys (key, column) and values (column, key) of a head; see Tile for the arrays.
template <class P>
struct KeysAndValues {
    const typename P::Element *keys, *values;
    int key_pitch, value_pitch;
};

// Heads of width kDim in 32 columns. Scores are in units of log 2.
template <class P, int kDim>
struct Attention {
    static constexpr int kHeads = 32 / kDim, kTiles = kDim / kTileColumns;

    float out[4][4] = {};
    float maximum[kHeads][2], total[kHeads][2] = {};  // of rows g and g + 8; total over this lane's columns

    __device__ Attention() {
        for (int h = 0; h < kHeads; ++h) maximum[h][0] = maximum[h][1] = -FLT_MAX;  // -inf - -inf would be NaN
    }

    // Attend to `count` keys. `row` is the query's and `key` the first key's number in the segment.
    __device__ void add(const float (&q)[4][4], const KeysAndValues<P>& from, int count, const Dropout& dropout,
                        int64_t segment, int head, int64_t row, int64_t key) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
            const DropoutSite site(dropout, segment, head + h);
            const KeysAndValues<P> own{from.keys + h * kDim, from.values + h * kDim * from.value_pitch, from.key_pitch,
                                       from.value_pitch};
            int done = 0;
            for (; count - done > 16; done += 32) add_keys<4>(q, h, own, done, count, site, row, key);
            if (done < count) add_keys<2>(q, h, own, done, count, site, row, key);
        }
    }

    // out = attended values, total = that of all lanes; `scale` is dropout's.
    __device__ void finish(float scale) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                total[h][half] = quad_sum(total[h][half]);
                const float factor = scale / total[h][half];
#pragma unroll
                for (int n = 0; n < kTiles; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i) out[h * kTiles + n][2 * half + i] *= factor;
            }
    }

  private:
    template <int kBlocks>
    __device__ void add_keys(const float (&q)[4][4], int h, const KeysAndValues<P>& from, int done, int count,
                             const DropoutSite& site, int64_t row, int64_t key) {
        float weights[kBlocks][4] = {};
        add_scores<P, kDim>(weights, InRegisters<P>{q + h * kTiles}, from.keys + done * from.key_pitch, from.key_pitch);
        soften(weights, h, count - done);
        drop_tiles(site, row, (key + done) / kTileColumns, 1.0f, weights);
#pragma unroll
        for (int u = 0; u < kBlocks / 2; ++u) {
            const typename P::Left a = P::left(weights[2 * u], weights[2 * u + 1]);
            uint32_t units[kTiles][P::kUnitWords];
            for (int n = 0; n < kTiles; ++n)
                load_unit_of_rows<P>(from.values + n * kTileColumns * from.value_pitch + done + u * kUnitDepth,
                                     from.value_pitch, units[n]);
            P::add(out + h * kTiles, a, units);
        }
    }

    // Scores of `count` keys to exp2(score - maximum), 0 after the last key.
    template <int kBlocks>
    __device__ void soften(float (&x)[kBlocks][4], int h, int count) {
        const int first = threadIdx.x % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = maximum[h][half];
#pragma unroll
            for (int n = 0; n < kBlocks; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& score = x[n][2 * half + i];
                    if (n * kTileColumns + first + i >= count) score = -INFINITY;
                    most = fmaxf(most, score);
                }
            most = quad_max(most);
            const float rescale = exp2f(maximum[h][half] - most);
            maximum[h][half] = most;
            total[h][half] *= rescale;
#pragma unroll
            for (int n = 0; n < kTiles; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) out[h * kTiles + n][2 * half + i] *= rescale;
#pragma unroll
            for (int n = 0; n < kBlocks; ++n)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& score = x[n][2 * half + i];
                    score = exp2f(score - most);
                    total[h][half] += score;
                }
        }
    }
};

}  // namespace sopr::cuda
