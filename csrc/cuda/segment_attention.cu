// Attention inside segments: forward with a running maximum, backward from its statistics, once by queries and once by
// keys so that every sum has one owner and one order.
#include <cfloat>

#include "cuda/attention_tile.h"
#include "cuda/dropout.h"
#include "cuda/kernels_cuda.h"
#include "cuda/launch.h"
#include "cuda/warp.h"

namespace sopr::cuda {
namespace {

// tile (kTile, kPitch) = factor * rows row : row + kTile of x, columns column : column + width; zeros past the segment.
__device__ void load_tile(const Head& h, const float* x, int64_t row, int64_t column, float factor, float* tile) {
    const int width = h.width(column);
    for (int i = threadIdx.x; i < kTile * width; i += kThreads) {
        const int r = i / width, c = i % width;
        tile[r * kPitch + c] = row + r < h.length ? factor * x[h.at(row + r) + column + c] : 0.0f;
    }
}

// dots[r] += the warp's row r of `own` times the lane's row of `streamed`.
__device__ void add_dots(const float* own, const float* streamed, int width, float (&dots)[kRows]) {
    const int lane = threadIdx.x % kLanes, first = threadIdx.x / kLanes * kRows;
    for (int c = 0; c < width; ++c) {
        const float other = streamed[lane * kPitch + c];
        for (int r = 0; r < kRows; ++r) dots[r] = fmaf(own[(first + r) * kPitch + c], other, dots[r]);
    }
}

// sums[r][i] += over the streamed rows j: the weight that lane j has for row r times column lane + 32 i of row j.
__device__ void add_mix(const float (&weights)[kRows], const float* streamed, int width, float (&sums)[kRows][kParts]) {
    const int lane = threadIdx.x % kLanes;
    for (int j = 0; j < kTile; ++j)
        for (int r = 0; r < kRows; ++r) {
            const float weight = __shfl_sync(kWholeWarp, weights[r], j);
            for (int i = 0; i < kParts; ++i)
                if (lane + i * kLanes < width)
                    sums[r][i] = fmaf(weight, streamed[j * kPitch + lane + i * kLanes], sums[r][i]);
        }
}

// Columns column : column + kColumns of the warp's rows of `to` = factor * sums.
__device__ void store_rows(const Head& h, int64_t row, int64_t column, const float (&sums)[kRows][kParts],
                           const float (&factor)[kRows], float* to) {
    const int lane = threadIdx.x % kLanes;
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kParts; ++i)
            if (row + r < h.length && lane + i * kLanes < h.width(column))
                to[h.at(row + r) + column + lane + i * kLanes] = factor[r] * sums[r][i];
}

// One tile of queries; wide heads repeat the scores for every kColumns columns of the output.
__device__ void attend(const SegmentAttention& p, const Head& h, const Drops& drops, int64_t query, float* queries,
                       float* keys, float* values) {
    const int lane = threadIdx.x % kLanes;
    const int64_t row = query + threadIdx.x / kLanes * kRows;
    for (int64_t column = 0; column < h.dim; column += kColumns) {
        float top[kRows], total[kRows], sums[kRows][kParts] = {};
        for (int r = 0; r < kRows; ++r) top[r] = -FLT_MAX, total[r] = 0;  // -inf - -inf is not a number
        for (int64_t key = 0; key < h.length; key += kTile) {
            float weights[kRows] = {};
            for (int64_t c = 0; c < h.dim; c += kColumns) {
                __syncthreads();
                if (key == 0 || h.dim > kColumns) load_tile(h, p.q, query, c, p.scale, queries);
                load_tile(h, p.k, key, c, 1.0f, keys);
                if (c == 0) load_tile(h, p.v, key, column, 1.0f, values);
                __syncthreads();
                add_dots(queries, keys, h.width(c), weights);
            }
            const bool real = key + lane < h.length;
            for (int r = 0; r < kRows; ++r) {
                const float peak = fmaxf(top[r], warp_max(real ? weights[r] : -INFINITY));
                const float shrink = expf(top[r] - peak);
                weights[r] = real ? expf(weights[r] - peak) : 0.0f;
                top[r] = peak;
                total[r] = total[r] * shrink + warp_sum(weights[r]);
                for (int i = 0; i < kParts; ++i) sums[r][i] *= shrink;
                if (real && row + r < h.length && !drops.keeps(row + r, key + lane)) weights[r] = 0;
            }
            add_mix(weights, values, h.width(column), sums);
        }
        float factor[kRows];
        for (int r = 0; r < kRows; ++r) factor[r] = drops.scale / total[r];
        store_rows(h, row, column, sums, factor, p.out);
        for (int r = 0; r < kRows; ++r)
            if (column == 0 && lane == 0 && row + r < h.length) {
                float* statistics = p.statistics + h.statistics_at(row + r);
                statistics[0] = top[r];
                statistics[1] = 1.0f / total[r];
            }
    }
}

__global__ void __launch_bounds__(kThreads, 2) attention_kernel(SegmentAttention p, Segments segments) {
    __shared__ float queries[kTile * kPitch], keys[kTile * kPitch], values[kTile * kPitch];
    const int64_t segment = blockIdx.x / p.heads, head = blockIdx.x % p.heads;
    const Head h(p, segments[segment], head);
    const Drops drops(p.dropout, segment, head);
    for (int64_t tile = blockIdx.y; tile * kTile < h.length; tile += gridDim.y)
        attend(p, h, drops, tile * kTile, queries, keys, values);
}

// A weight after dropout and the gradient of its score. `mean` is the sum over keys of weight times gradient.
struct Pair {
    float weight, grad_score;
};

__device__ Pair softmax_backward(float score, float grad, float top, float inverse, float mean, bool keep,
                                 float scale) {
    const float weight = expf(score - top) * inverse;
    return {keep ? weight * scale : 0.0f, weight * ((keep ? grad * scale : 0.0f) - mean)};
}

// grad_q of one tile of queries, keys streaming past.
__device__ void attend_by_queries(const SegmentAttentionBackward& b, const Head& h, const Drops& drops, int64_t query,
                                  float* queries, float* grads, float* keys, float* values) {
    const SegmentAttention& p = b.forward;
    const int lane = threadIdx.x % kLanes;
    const int64_t row = query + threadIdx.x / kLanes * kRows;
    float top[kRows], inverse[kRows], mean[kRows], factor[kRows];
    for (int r = 0; r < kRows; ++r) {
        const bool real = row + r < h.length;
        float dot = 0;
        for (int64_t c = lane; real && c < h.dim; c += kLanes)
            dot = fmaf(b.grad_out[h.at(row + r) + c], p.out[h.at(row + r) + c], dot);
        mean[r] = warp_sum(dot);
        top[r] = real ? p.statistics[h.statistics_at(row + r)] : 0.0f;
        inverse[r] = real ? p.statistics[h.statistics_at(row + r) + 1] : 0.0f;
        factor[r] = p.scale;
    }
    for (int64_t column = 0; column < h.dim; column += kColumns) {
        float sums[kRows][kParts] = {};
        for (int64_t key = 0; key < h.length; key += kTile) {
            float scores[kRows] = {}, grad_scores[kRows] = {};
            for (int64_t c = 0; c < h.dim; c += kColumns) {
                __syncthreads();
                if (key == 0 || h.dim > kColumns) {
                    load_tile(h, p.q, query, c, p.scale, queries);
                    load_tile(h, b.grad_out, query, c, 1.0f, grads);
                }
                load_tile(h, p.k, key, c, 1.0f, keys);
                load_tile(h, p.v, key, c, 1.0f, values);
                __syncthreads();
                add_dots(queries, keys, h.width(c), scores);
                add_dots(grads, values, h.width(c), grad_scores);
            }
            for (int r = 0; r < kRows; ++r) {
                const bool real = row + r < h.length && key + lane < h.length;
                const bool keep = real && drops.keeps(row + r, key + lane);
                const Pair pair =
                    softmax_backward(scores[r], grad_scores[r], top[r], inverse[r], mean[r], keep, drops.scale);
                grad_scores[r] = real ? pair.grad_score : 0.0f;
            }
            if (h.dim > kColumns) {
                __syncthreads();
                load_tile(h, p.k, key, column, 1.0f, keys);
                __syncthreads();
            }
            add_mix(grad_scores, keys, h.width(column), sums);
        }
        store_rows(h, row, column, sums, factor, b.grad_q);
    }
}

// grad_k and grad_v of one tile of keys, queries streaming past.
__device__ void attend_by_keys(const SegmentAttentionBackward& b, const Head& h, const Drops& drops, int64_t key,
                               float* keys, float* values, float* queries, float* grads, float* outs) {
    const SegmentAttention& p = b.forward;
    const int lane = threadIdx.x % kLanes;
    const int64_t row = key + threadIdx.x / kLanes * kRows;
    float one[kRows];
    for (int r = 0; r < kRows; ++r) one[r] = 1.0f;
    for (int64_t column = 0; column < h.dim; column += kColumns) {
        float key_sums[kRows][kParts] = {}, value_sums[kRows][kParts] = {};
        for (int64_t query = 0; query < h.length; query += kTile) {
            float scores[kRows] = {}, weights[kRows] = {}, mean = 0;
            for (int64_t c = 0; c < h.dim; c += kColumns) {
                __syncthreads();
                if (query == 0 || h.dim > kColumns) {
                    load_tile(h, p.k, key, c, 1.0f, keys);
                    load_tile(h, p.v, key, c, 1.0f, values);
                }
                load_tile(h, p.q, query, c, p.scale, queries);
                load_tile(h, b.grad_out, query, c, 1.0f, grads);
                load_tile(h, p.out, query, c, 1.0f, outs);
                __syncthreads();
                add_dots(keys, queries, h.width(c), scores);
                add_dots(values, grads, h.width(c), weights);
                for (int i = 0; i < h.width(c); ++i)
                    mean = fmaf(grads[lane * kPitch + i], outs[lane * kPitch + i], mean);
            }
            const bool asks = query + lane < h.length;
            const float top = asks ? p.statistics[h.statistics_at(query + lane)] : 0.0f;
            const float inverse = asks ? p.statistics[h.statistics_at(query + lane) + 1] : 0.0f;
            for (int r = 0; r < kRows; ++r) {
                const bool real = row + r < h.length && asks;
                const bool keep = real && drops.keeps(query + lane, row + r);
                const Pair pair = softmax_backward(scores[r], weights[r], top, inverse, mean, keep, drops.scale);
                scores[r] = real ? pair.grad_score : 0.0f;
                weights[r] = real ? pair.weight : 0.0f;
            }
            if (h.dim > kColumns) {
                __syncthreads();
                load_tile(h, p.q, query, column, p.scale, queries);
                load_tile(h, b.grad_out, query, column, 1.0f, grads);
                __syncthreads();
            }
            add_mix(scores, queries, h.width(column), key_sums);
            add_mix(weights, grads, h.width(column), value_sums);
        }
        store_rows(h, row, column, key_sums, one, b.grad_k);
        store_rows(h, row, column, value_sums, one, b.grad_v);
    }
}

__global__ void __launch_bounds__(kThreads, 2) by_queries_kernel(SegmentAttentionBackward b, Segments segments) {
    __shared__ float queries[kTile * kPitch], grads[kTile * kPitch], keys[kTile * kPitch], values[kTile * kPitch];
    const int64_t segment = blockIdx.x / b.forward.heads, head = blockIdx.x % b.forward.heads;
    const Head h(b.forward, segments[segment], head);
    const Drops drops(b.forward.dropout, segment, head);
    for (int64_t tile = blockIdx.y; tile * kTile < h.length; tile += gridDim.y)
        attend_by_queries(b, h, drops, tile * kTile, queries, grads, keys, values);
}

__global__ void __launch_bounds__(kThreads, 2) by_keys_kernel(SegmentAttentionBackward b, Segments segments) {
    __shared__ float keys[kTile * kPitch], values[kTile * kPitch], queries[kTile * kPitch], grads[kTile * kPitch],
        outs[kTile * kPitch];
    const int64_t segment = blockIdx.x / b.forward.heads, head = blockIdx.x % b.forward.heads;
    const Head h(b.forward, segments[segment], head);
    const Drops drops(b.forward.dropout, segment, head);
    for (int64_t tile = blockIdx.y; tile * kTile < h.length; tile += gridDim.y)
        attend_by_keys(b, h, drops, tile * kTile, keys, values, queries, grads, outs);
}

}  // namespace

void segment_attention(const SegmentAttention& p, const Segments& segments, cudaStream_t stream) {
    const int64_t heads = p.segments * p.heads;
    if (heads == 0 || p.dim == 0) return;
    launch("segment_attention", attention_kernel, heads, blocks_of_a_head(heads), kThreads, stream, p, segments);
}

void segment_attention(const SegmentAttention& p, cudaStream_t stream) {
    segment_attention(p, {p.offsets, p.segments}, stream);
}

void segment_attention_backward(const SegmentAttentionBackward& b, cudaStream_t stream) {
    const int64_t heads = b.forward.segments * b.forward.heads;
    if (heads == 0 || b.forward.dim == 0) return;
    const int64_t blocks = blocks_of_a_head(heads);
    const Segments segments{b.forward.offsets, b.forward.segments};
    launch("segment_attention_backward", by_queries_kernel, heads, blocks, kThreads, stream, b, segments);
    launch("segment_attention_backward", by_keys_kernel, heads, blocks, kThreads, stream, b, segments);
}

}  // namespace sopr::cuda
