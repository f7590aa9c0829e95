// Attention inside segments. Forward is an online softmax; backward uses its statistics and runs twice, by queries and
// by keys, so that every sum has one owner and a fixed order.
//
// A block owns kTile rows of a head of a segment, kRows per warp, and streams kTile other rows past them, one per lane.
// Columns pass through shared memory as many at a time as `Columns` says; lanes share narrow ones.
#include <cfloat>

#include "cuda/kernels_cuda.h"
#include "cuda/launch.h"
#include "cuda/segments.h"
#include "cuda/warp.h"
#include "dropout_site.h"

namespace sopr::cuda {
namespace {

constexpr int kWarps = 8, kRows = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kTile = kWarps * kRows;
static_assert(kTile == kWarpSize);

// A lane sums kParts columns, kLanes apart; with fewer lanes than a warp's, groups of lanes take turns with the rows.
template <int lanes, int parts>
struct Columns {
    static constexpr int kLanes = lanes, kParts = parts, kColumns = lanes * parts;
    static constexpr int kPitch = kColumns + 1;  // +1 avoids bank conflicts
    static constexpr int kTileFloats = kTile * kPitch;
};

// One segment and head of (T, H, D) arrays.
struct SegmentHead {
    int64_t begin, length, dim, heads, head;

    SOPR_INLINE SegmentHead(const SegmentAttention& p, const Span& segment, int64_t head)
        : begin(segment.begin), length(segment.length), dim(p.dim), heads(p.heads), head(head) {}
    SOPR_INLINE int64_t index(int64_t row) const { return ((begin + row) * heads + head) * dim; }
    SOPR_INLINE int64_t statistics_index(int64_t row) const { return ((begin + row) * heads + head) * 2; }
    // Columns from `column` on, at most `most`.
    SOPR_INLINE int width(int64_t column, int most) const { return int(dim - column < most ? dim - column : most); }
};

// Blocks per head: many fill a device when there are few heads, and some share the rows of a long segment.
SOPR_INLINE int64_t blocks_per_head(int64_t all_heads) {
    const int64_t blocks = 1024 / all_heads;
    return blocks < 8 ? 8 : blocks < 256 ? blocks : 256;
}

// What a block owns: every `blocks`-th tile of a head from `tile` on. All blocks of the longest segments come first.
struct Share {
    int64_t segment, head, tile;

    __device__ Share(const SegmentAttention& p, int64_t blocks)
        : segment(p.order[blockIdx.x / blocks / p.heads]),
          head(blockIdx.x / blocks % p.heads),
          tile(blockIdx.x % blocks) {}
};

// tile (kTile, kPitch) = factor * x[row : row + kTile, column : column + width]; zeros after the segment.
template <class C>
__device__ void load_tile(const SegmentHead& h, const float* x, int64_t row, int64_t column, float factor,
                          float* tile) {
    const int width = h.width(column, C::kColumns);
    for (int i = threadIdx.x; i < kTile * width; i += kThreads) {
        const int r = i / width, c = i % width;
        tile[r * C::kPitch + c] = row + r < h.length ? factor * x[h.index(row + r) + column + c] : 0.0f;
    }
}

// dots[r] += row r of the warp in `own` times the row of the lane in `streamed`.
template <class C>
__device__ void add_dots(const float* own, const float* streamed, int width, float (&dots)[kRows]) {
    const int lane = threadIdx.x % kWarpSize, first = threadIdx.x / kWarpSize * kRows;
    for (int c = 0; c < width; ++c) {
        const float other = streamed[lane * C::kPitch + c];
        for (int r = 0; r < kRows; ++r) dots[r] = fmaf(own[(first + r) * C::kPitch + c], other, dots[r]);
    }
}

// sums[r][i] += sum over this group's streamed rows j of weights[r] in lane j times column i of this lane in row j.
template <class C>
__device__ void add_weighted_rows(const float (&weights)[kRows], const float* streamed, int width,
                                  float (&sums)[kRows][C::kParts]) {
    const int lane = threadIdx.x % kWarpSize, column = lane % C::kLanes;
    for (int j = lane / C::kLanes; j < kTile; j += kWarpSize / C::kLanes)
        for (int r = 0; r < kRows; ++r) {
            const float weight = __shfl_sync(kWholeWarp, weights[r], j);
            for (int i = 0; i < C::kParts; ++i)
                if (column + i * C::kLanes < width)
                    sums[r][i] = fmaf(weight, streamed[j * C::kPitch + column + i * C::kLanes], sums[r][i]);
        }
}

// to[rows of the warp, column : column + kColumns] = factor * sums, added over groups of lanes.
template <class C>
__device__ void store_rows(const SegmentHead& h, int64_t row, int64_t column, const float (&sums)[kRows][C::kParts],
                           const float (&factor)[kRows], float* to) {
    const int lane = threadIdx.x % kWarpSize;
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < C::kParts; ++i) {
            float sum = sums[r][i];
            for (int step = C::kLanes; step < kWarpSize; step *= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
            const int own = lane + i * C::kLanes;
            if (row + r < h.length && lane < C::kLanes && own < h.width(column, C::kColumns))
                to[h.index(row + r) + column + own] = factor[r] * sum;
        }
}

// keep[r] = whether dropout keeps the weight of row + r and key first_key + lane. Lane l < 16 draws for row + l / 4 and
// eight keys from first_key + 8 (l % 4) on; first_key is a multiple of 8.
__device__ void keep_by_queries(const DropoutSite& site, int64_t row, int64_t first_key, bool (&keep)[kRows]) {
    static_assert(kRows * kWarpSize / 8 <= kWarpSize);
    for (int r = 0; r < kRows; ++r) keep[r] = true;
    if (site.threshold == 0) return;
    const int lane = threadIdx.x % kWarpSize;
    const Philox4 own = site.bits(row + lane / 4 % kRows, first_key / 8 + lane % 4);
    for (int r = 0; r < kRows; ++r) {
        Philox4 bits;
        for (int i = 0; i < 4; ++i) bits.word[i] = __shfl_sync(kWholeWarp, own.word[i], r * 4 + lane / 8);
        keep[r] = philox_draw(bits, uint32_t(lane)) >= site.threshold;
    }
}

// keep[r] = whether dropout keeps the weight of a query and key first_key + r: one draw, since kRows divides 8.
__device__ void keep_by_keys(const DropoutSite& site, int64_t query, int64_t first_key, bool (&keep)[kRows]) {
    static_assert(8 % kRows == 0);
    for (int r = 0; r < kRows; ++r) keep[r] = true;
    if (site.threshold == 0) return;
    const Philox4 bits = site.bits(query, first_key / 8);
    for (int r = 0; r < kRows; ++r) keep[r] = philox_draw(bits, uint32_t(first_key + r)) >= site.threshold;
}

// Attend from one tile of queries; wide heads recompute the scores for every kColumns columns of the output.
template <class C>
__device__ void attend(const SegmentAttention& p, const SegmentHead& h, const DropoutSite& site, int64_t query,
                       float* queries, float* keys, float* values) {
    const int lane = threadIdx.x % kWarpSize;
    const int64_t row = query + threadIdx.x / kWarpSize * kRows;
    for (int64_t column = 0; column < h.dim; column += C::kColumns) {
        float maximum[kRows], total[kRows], sums[kRows][C::kParts] = {};
        for (int r = 0; r < kRows; ++r)
            maximum[r] = -FLT_MAX, total[r] = 0;  // with -FLT_MAX, a score of -inf does not give NaN
        for (int64_t key = 0; key < h.length; key += kTile) {
            float weights[kRows] = {};
            for (int64_t c = 0; c < h.dim; c += C::kColumns) {
                __syncthreads();
                if (key == 0 || h.dim > C::kColumns) load_tile<C>(h, p.q, query, c, p.scale, queries);
                load_tile<C>(h, p.k, key, c, 1.0f, keys);
                if (c == 0) load_tile<C>(h, p.v, key, column, 1.0f, values);
                __syncthreads();
                add_dots<C>(queries, keys, h.width(c, C::kColumns), weights);
            }
            const bool inside = key + lane < h.length;
            bool keep[kRows];
            keep_by_queries(site, row, key, keep);
            for (int r = 0; r < kRows; ++r) {
                const float new_maximum = fmaxf(maximum[r], warp_max(inside ? weights[r] : -INFINITY));
                const float rescale = expf(maximum[r] - new_maximum);
                weights[r] = inside ? expf(weights[r] - new_maximum) : 0.0f;
                maximum[r] = new_maximum;
                total[r] = total[r] * rescale + warp_sum(weights[r]);
                for (int i = 0; i < C::kParts; ++i) sums[r][i] *= rescale;
                if (!keep[r]) weights[r] = 0;
            }
            add_weighted_rows<C>(weights, values, h.width(column, C::kColumns), sums);
        }
        float factor[kRows];
        for (int r = 0; r < kRows; ++r) factor[r] = site.scale / total[r];
        store_rows<C>(h, row, column, sums, factor, p.out);
        for (int r = 0; r < kRows; ++r)
            if (column == 0 && lane == 0 && row + r < h.length) {
                float* statistics = p.statistics + h.statistics_index(row + r);
                statistics[0] = maximum[r];
                statistics[1] = 1.0f / total[r];
            }
    }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 2) attention_kernel(SegmentAttention p, Segments segments, int64_t blocks) {
    __shared__ float queries[C::kTileFloats], keys[C::kTileFloats], values[C::kTileFloats];
    const Share own(p, blocks);
    const SegmentHead h(p, segments[own.segment], own.head);
    const DropoutSite site(p.dropout, own.segment, own.head);
    for (int64_t tile = own.tile; tile * kTile < h.length; tile += blocks)
        attend<C>(p, h, site, tile * kTile, queries, keys, values);
}

// A weight after dropout and the gradient of its score. `mean` is the sum over keys of weight * gradient.
struct Pair {
    float weight, grad_score;
};

__device__ Pair softmax_backward(float score, float grad, float maximum, float inverse, float mean, bool keep,
                                 float scale) {
    const float weight = expf(score - maximum) * inverse;
    return {keep ? weight * scale : 0.0f, weight * ((keep ? grad * scale : 0.0f) - mean)};
}

// grad_q of one tile of queries; streams keys.
template <class C>
__device__ void attend_by_queries(const SegmentAttentionBackward& b, const SegmentHead& h, const DropoutSite& site,
                                  int64_t query, float* queries, float* grads, float* keys, float* values) {
    const SegmentAttention& p = b.forward;
    const int lane = threadIdx.x % kWarpSize;
    const int64_t row = query + threadIdx.x / kWarpSize * kRows;
    float maximum[kRows], inverse[kRows], mean[kRows], factor[kRows];
    for (int r = 0; r < kRows; ++r) {
        const bool inside = row + r < h.length;
        float dot = 0;
        for (int64_t c = lane; inside && c < h.dim; c += kWarpSize)
            dot = fmaf(b.grad_out[h.index(row + r) + c], p.out[h.index(row + r) + c], dot);
        mean[r] = warp_sum(dot);
        maximum[r] = inside ? p.statistics[h.statistics_index(row + r)] : 0.0f;
        inverse[r] = inside ? p.statistics[h.statistics_index(row + r) + 1] : 0.0f;
        factor[r] = p.scale;
    }
    for (int64_t column = 0; column < h.dim; column += C::kColumns) {
        float sums[kRows][C::kParts] = {};
        for (int64_t key = 0; key < h.length; key += kTile) {
            float scores[kRows] = {}, grad_scores[kRows] = {};
            for (int64_t c = 0; c < h.dim; c += C::kColumns) {
                __syncthreads();
                if (key == 0 || h.dim > C::kColumns) {
                    load_tile<C>(h, p.q, query, c, p.scale, queries);
                    load_tile<C>(h, b.grad_out, query, c, 1.0f, grads);
                }
                load_tile<C>(h, p.k, key, c, 1.0f, keys);
                load_tile<C>(h, p.v, key, c, 1.0f, values);
                __syncthreads();
                add_dots<C>(queries, keys, h.width(c, C::kColumns), scores);
                add_dots<C>(grads, values, h.width(c, C::kColumns), grad_scores);
            }
            bool keep[kRows];
            keep_by_queries(site, row, key, keep);
            for (int r = 0; r < kRows; ++r) {
                const bool inside = row + r < h.length && key + lane < h.length;
                const Pair pair =
                    softmax_backward(scores[r], grad_scores[r], maximum[r], inverse[r], mean[r], keep[r], site.scale);
                grad_scores[r] = inside ? pair.grad_score : 0.0f;
            }
            if (h.dim > C::kColumns) {
                __syncthreads();
                load_tile<C>(h, p.k, key, column, 1.0f, keys);
                __syncthreads();
            }
            add_weighted_rows<C>(grad_scores, keys, h.width(column, C::kColumns), sums);
        }
        store_rows<C>(h, row, column, sums, factor, b.grad_q);
    }
}

// grad_k and grad_v of one tile of keys; streams queries.
template <class C>
__device__ void attend_by_keys(const SegmentAttentionBackward& b, const SegmentHead& h, const DropoutSite& site,
                               int64_t key, float* keys, float* values, float* queries, float* grads, float* outs) {
    const SegmentAttention& p = b.forward;
    const int lane = threadIdx.x % kWarpSize;
    const int64_t row = key + threadIdx.x / kWarpSize * kRows;
    float one[kRows];
    for (int r = 0; r < kRows; ++r) one[r] = 1.0f;
    for (int64_t column = 0; column < h.dim; column += C::kColumns) {
        float key_sums[kRows][C::kParts] = {}, value_sums[kRows][C::kParts] = {};
        for (int64_t query = 0; query < h.length; query += kTile) {
            float scores[kRows] = {}, weights[kRows] = {}, mean = 0;
            for (int64_t c = 0; c < h.dim; c += C::kColumns) {
                __syncthreads();
                if (query == 0 || h.dim > C::kColumns) {
                    load_tile<C>(h, p.k, key, c, 1.0f, keys);
                    load_tile<C>(h, p.v, key, c, 1.0f, values);
                }
                load_tile<C>(h, p.q, query, c, p.scale, queries);
                load_tile<C>(h, b.grad_out, query, c, 1.0f, grads);
                load_tile<C>(h, p.out, query, c, 1.0f, outs);
                __syncthreads();
                add_dots<C>(keys, queries, h.width(c, C::kColumns), scores);
                add_dots<C>(values, grads, h.width(c, C::kColumns), weights);
                for (int i = 0; i < h.width(c, C::kColumns); ++i)
                    mean = fmaf(grads[lane * C::kPitch + i], outs[lane * C::kPitch + i], mean);
            }
            const bool is_query = query + lane < h.length;
            const float maximum = is_query ? p.statistics[h.statistics_index(query + lane)] : 0.0f;
            const float inverse = is_query ? p.statistics[h.statistics_index(query + lane) + 1] : 0.0f;
            bool keep[kRows];
            keep_by_keys(site, query + lane, row, keep);
            for (int r = 0; r < kRows; ++r) {
                const bool inside = row + r < h.length && is_query;
                const Pair pair = softmax_backward(scores[r], weights[r], maximum, inverse, mean, keep[r], site.scale);
                scores[r] = inside ? pair.grad_score : 0.0f;
                weights[r] = inside ? pair.weight : 0.0f;
            }
            if (h.dim > C::kColumns) {
                __syncthreads();
                load_tile<C>(h, p.q, query, column, p.scale, queries);
                load_tile<C>(h, b.grad_out, query, column, 1.0f, grads);
                __syncthreads();
            }
            add_weighted_rows<C>(scores, queries, h.width(column, C::kColumns), key_sums);
            add_weighted_rows<C>(weights, grads, h.width(column, C::kColumns), value_sums);
        }
        store_rows<C>(h, row, column, key_sums, one, b.grad_k);
        store_rows<C>(h, row, column, value_sums, one, b.grad_v);
    }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 2)
    by_queries_kernel(SegmentAttentionBackward b, Segments segments, int64_t blocks) {
    __shared__ float queries[C::kTileFloats], grads[C::kTileFloats], keys[C::kTileFloats], values[C::kTileFloats];
    const Share own(b.forward, blocks);
    const SegmentHead h(b.forward, segments[own.segment], own.head);
    const DropoutSite site(b.forward.dropout, own.segment, own.head);
    for (int64_t tile = own.tile; tile * kTile < h.length; tile += blocks)
        attend_by_queries<C>(b, h, site, tile * kTile, queries, grads, keys, values);
}

template <class C>
__global__ void __launch_bounds__(kThreads, 2)
    by_keys_kernel(SegmentAttentionBackward b, Segments segments, int64_t blocks) {
    __shared__ float keys[C::kTileFloats], values[C::kTileFloats], queries[C::kTileFloats], grads[C::kTileFloats],
        outs[C::kTileFloats];
    const Share own(b.forward, blocks);
    const SegmentHead h(b.forward, segments[own.segment], own.head);
    const DropoutSite site(b.forward.dropout, own.segment, own.head);
    for (int64_t tile = own.tile; tile * kTile < h.length; tile += blocks)
        attend_by_keys<C>(b, h, site, tile * kTile, keys, values, queries, grads, outs);
}

// Call run(Columns<...>()) for the width of heads.
template <class Run>
void by_width(int64_t dim, const Run& run) {
    if (dim <= 8)
        run(Columns<8, 1>());
    else if (dim <= 32)
        run(Columns<32, 1>());
    else
        run(Columns<32, 2>());
}

}  // namespace

void segment_attention(const SegmentAttention& p, const Segments& segments, cudaStream_t stream) {
    const int64_t heads = p.segments * p.heads;
    if (heads == 0 || p.dim == 0) return;
    by_width(p.dim, [&](auto columns) {
        const int64_t blocks = blocks_per_head(heads);
        launch("segment_attention", attention_kernel<decltype(columns)>, heads * blocks, 1, kThreads, stream, p,
               segments, blocks);
    });
}

void segment_attention(const SegmentAttention& p, cudaStream_t stream) {
    const Segments segments{p.offsets, p.segments};
    if (p.segments) order_segments(segments, p.segments, p.order, stream);
    segment_attention(p, segments, stream);
}

void segment_attention_backward(const SegmentAttentionBackward& b, cudaStream_t stream) {
    const int64_t heads = b.forward.segments * b.forward.heads;
    if (heads == 0 || b.forward.dim == 0) return;
    const int64_t blocks = blocks_per_head(heads);
    const Segments segments{b.forward.offsets, b.forward.segments};
    order_segments(segments, b.forward.segments, b.forward.order, stream);
    by_width(b.forward.dim, [&](auto columns) {
        using C = decltype(columns);
        launch("segment_attention_backward", by_queries_kernel<C>, heads * blocks, 1, kThreads, stream, b, segments,
               blocks);
        launch("segment_attention_backward", by_keys_kernel<C>, heads * blocks, 1, kThreads, stream, b, segments,
               blocks);
    });
}

}  // namespace sopr::cuda
