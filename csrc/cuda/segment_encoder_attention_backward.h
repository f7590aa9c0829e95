// Backward pass of softmax attention for a warp's 16 rows, over rows of their segment in shared memory. With the scores
// s of queries q and keys k, p = softmax(s), the mask m of dropout, attended values o = (p m) v and the gradient do of
// o: dv = (p m)^T do and ds = p (m do v^T - mean), where the mean of a query's row is the sum of o do.
//
// Scores are computed anew, twice: with queries as rows for dq, and with keys as rows for dk and dv. So every sum stays
// in one warp, in a fixed order.
#pragma once

#include "cuda/segment_encoder_attention.h"
#include "cuda/segment_encoder_plan.h"

namespace sopr::cuda {

// For a query and a head: largest score, 1 / sum(exp2(score - largest)), sum of o do.
struct RowStatistics {
    float maximum, inverse, mean;
};

// Shared memory of the backward pass: arrays of 32 columns, (token, column) with columns in the order of P::place.
template <class P>
struct BackwardMemory {
    using Element = typename P::Element;
    static constexpr int kPitch = 32 + 16 / int(sizeof(Element));  // 16 bytes more avoid bank conflicts
    static constexpr int kElements = kTileTokens * kPitch;
    static constexpr int kArray = kElements * int(sizeof(Element));                   // bytes
    static constexpr int kStatistics = 4 * kTileTokens * int(sizeof(RowStatistics));  // of at most four heads
    static constexpr int kOperands = 4 * kArray + kStatistics;                        // queries to gradients
    static constexpr int kFixed = kOperands + 2 * kArray + kStatistics;

    enum Array { kQueries, kKeys, kValues, kGradients, kFirst, kSecond };

    // An array, or an image of one in global memory.
    __device__ Element* array(int i) const {
        return reinterpret_cast<Element*>(dynamic_shared() + i * kArray + (i < 4 ? 0 : kStatistics));
    }
    __device__ RowStatistics* statistics() const {  // of this tile's rows, by head and row
        return reinterpret_cast<RowStatistics*>(dynamic_shared() + 4 * kArray);
    }
    __device__ RowStatistics* other_statistics() const {
        return reinterpret_cast<RowStatistics*>(dynamic_shared() + kOperands + 2 * kArray);
    }
    __device__ uint32_t* slots() const { return reinterpret_cast<uint32_t*>(dynamic_shared() + kFixed); }
};

// Which of eight columns dropout keeps, a bit each.
__device__ inline uint32_t kept_of_block(const DropoutSite& site, int64_t row, int64_t block) {
    const Philox4 bits = site.bits(row, block);
    uint32_t kept = 0;
    for (uint32_t c = 0; c < 8; ++c) kept |= uint32_t(philox_draw(bits, c) >= site.threshold) << c;
    return kept;
}

// Heads of width kDim in 32 columns; all arrays start at these.
template <class P, int kDim>
struct AttentionBackward {
    using Element = typename P::Element;
    static constexpr int kHeads = 32 / kDim, kTiles = kDim / kTileColumns, kPitch = BackwardMemory<P>::kPitch;

    Dropout dropout;
    int64_t segment;
    int head;  // the first

    // dq += ds k for `count` keys. `queries` and `grads` are the warp's 16 rows, `own` their statistics; `row` is the
    // number of row g, `key` that of the first key.
    __device__ void add_grad_of_queries(float (&dq)[4][4], const Element* queries, const Element* grads,
                                        const RowStatistics* own, const Element* keys, const Element* values, int count,
                                        int64_t row, int64_t key) const {
        const int g = threadIdx.x % kWarpSize / 4;
        for (int h = 0; h < kHeads; ++h) {
            const DropoutSite site(dropout, segment, head + h);
            const InRows<P> q{queries + h * kDim, kPitch}, grad{grads + h * kDim, kPitch};
            const RowStatistics rows[2] = {own[h * kTileTokens + g], own[h * kTileTokens + g + 8]};
            with_sums(dq, h, [&](Sums& sums) {
                int done = 0;
                for (; count - done > 16; done += 32)
                    add_keys<4>(sums, q, grad, rows, keys + h * kDim, values + h * kDim, done, count, site, row, key);
                if (done < count)
                    add_keys<2>(sums, q, grad, rows, keys + h * kDim, values + h * kDim, done, count, site, row, key);
            });
        }
    }

    // dk += ds^T q and dv += (p m)^T do for `count` queries. `keys` and `values` are the warp's 16 rows, the first of
    // which is number `row`; `query` is the number of the first query, `others` the queries' statistics.
    __device__ void add_grad_of_keys(float (&dk)[4][4], float (&dv)[4][4], const Element* keys, const Element* values,
                                     const Element* queries, const Element* grads, const RowStatistics* others,
                                     int count, int64_t row, int64_t query) const {
        for (int h = 0; h < kHeads; ++h) {
            const DropoutSite site(dropout, segment, head + h);
            const InRows<P> k{keys + h * kDim, kPitch}, v{values + h * kDim, kPitch};
            with_sums(dk, h, [&](Sums& k_sums) {
                with_sums(dv, h, [&](Sums& v_sums) {
                    for (int done = 0; done < count; done += 16) {
                        const Element *q = queries + done * kPitch + h * kDim, *grad = grads + done * kPitch + h * kDim;
                        float weights[2][4] = {}, ds[2][4] = {};
                        add_scores<P, kDim>(weights, k, q, kPitch);
                        add_scores<P, kDim>(ds, v, grad, kPitch);
                        soften(weights, ds, others + h * kTileTokens + done, count - done, site, row, query + done);
                        add_transposed(v_sums, weights, grad);
                        add_transposed(k_sums, ds, q);
                    }
                });
            });
        }
    }

  private:
    using Sums = float[kTiles][4];

    // Call add(sums) with head h's part of x. A sum of its own, since x may stay in registers only where its indices
    // are constants.
    template <class Add>
    __device__ __forceinline__ static void with_sums(float (&x)[4][4], int h, const Add& add) {
        if constexpr (kHeads == 1) {
            add(x);
        } else {
            float sums[kTiles][4] = {};
            add(sums);
#pragma unroll
            for (int n = 0; n < 4; ++n)
                if (n / kTiles == h)
                    for (int i = 0; i < 4; ++i) x[n][i] += sums[n % kTiles][i];
        }
    }

    // sums += x (16, 8 kBlocks) rows, whose columns are those of a head.
    template <int kBlocks>
    __device__ static void add_transposed(float (&sums)[kTiles][4], const float (&x)[kBlocks][4], const Element* rows) {
#pragma unroll
        for (int u = 0; u < kBlocks / 2; ++u) {
            const typename P::Left a = P::left(x[2 * u], x[2 * u + 1]);
            uint32_t units[kTiles][P::kUnitWords];
            for (int n = 0; n < kTiles; ++n)
                load_unit_of_columns(rows + u * kUnitDepth * kPitch + n * kTileColumns, kPitch, units[n]);
            P::add(sums, a, units);
        }
    }

    template <int kBlocks>
    __device__ static void add_keys(float (&sums)[kTiles][4], const InRows<P>& q, const InRows<P>& grad,
                                    const RowStatistics (&rows)[2], const Element* keys, const Element* values,
                                    int done, int count, const DropoutSite& site, int64_t row, int64_t key) {
        keys += done * kPitch;
        values += done * kPitch;
        float p[kBlocks][4] = {}, ds[kBlocks][4] = {};
        add_scores<P, kDim>(ds, grad, values, kPitch);
        drop_tiles(site, row, (key + done) / kTileColumns, site.scale, ds);
        add_scores<P, kDim>(p, q, keys, kPitch);
        for (int n = 0; n < kBlocks; ++n)
            for (int i = 0; i < 4; ++i) {
                const RowStatistics& r = rows[i / 2];
                const bool inside = done + n * kTileColumns + int(threadIdx.x) % 4 * 2 + i % 2 < count;
                ds[n][i] = inside ? exp2f(p[n][i] - r.maximum) * r.inverse * (ds[n][i] - r.mean) : 0.0f;
            }
        add_transposed(sums, ds, keys);
    }

    // From scores of keys by queries and do v^T to p m and ds, 0 from query `count` on.
    __device__ static void soften(float (&weights)[2][4], float (&ds)[2][4], const RowStatistics* queries, int count,
                                  const DropoutSite& site, int64_t row, int64_t query) {
        const int lane = threadIdx.x % kWarpSize, g = lane / 4;
        uint32_t kept = 0;  // of query lane % 16 and the keys of block lane / 16
        if (site.threshold) kept = kept_of_block(site, query + lane % 16, row / kTileColumns + lane / 16);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int column = n * kTileColumns + lane % 4 * 2 + j;
                const RowStatistics q = queries[column];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float &weight = weights[n][2 * half + j], &grad = ds[n][2 * half + j], mask = 1;
                    if (site.threshold)
                        mask = __shfl_sync(kWholeWarp, kept, column + 16 * half) >> g & 1 ? site.scale : 0.0f;
                    const float p = column < count ? exp2f(weight - q.maximum) * q.inverse : 0.0f;
                    weight = p * mask;
                    grad = column < count ? p * (mask * grad - q.mean) : 0.0f;
                }
            }
    }
};

}  // namespace sopr::cuda
