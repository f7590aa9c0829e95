// Attention inside segments: a block of queries lies in the lanes and keys stream past it, with a running maximum
// forward and from its statistics backward. One task owns a segment's head, so that every sum has one order.
#include "cpu/attention_tile.h"
#include "cpu/order.h"
#include "cpu/pool.h"
#include "cpu/table.h"
#include "cpu/worker_memory.h"

namespace sopr::SOPR_LEVEL {
namespace {

// One segment and head of (T, H, D) arrays.
struct Head {
    int64_t begin, length, dim, stride, pitch;  // rows are `stride` apart, `pitch` in the buffers of whole vectors
    int64_t first, first_statistic, heads;      // of the head's values and of its statistics
    Drops drops;

    Head(const SegmentAttention& p, int64_t segment, int64_t head)
        : begin(p.offsets[segment]),
          length(p.offsets[segment + 1] - begin),
          dim(p.dim),
          stride(p.heads * p.dim),
          pitch(round_up(p.dim, kLanes)),
          first(begin * stride + head * dim),
          first_statistic((begin * p.heads + head) * 2),
          heads(p.heads),
          drops(drops_of(p.dropout, segment, uint32_t(head))) {}

    int64_t at(int64_t row) const { return first + row * stride; }
    int64_t statistics_at(int64_t row) const { return first_statistic + row * heads * 2; }

    // to (count, pitch) = factor * rows of x, zero in the padding.
    void copy_rows(const float* x, int64_t row, int64_t count, float factor, float* to) const {
        for (int64_t i = 0; i < count; ++i, to += pitch)
            for (int64_t c = 0; c < pitch; ++c) to[c] = c < dim ? factor * x[at(row + i) + c] : 0.0f;
    }

    // scores (keys, kPanel) = rows of x times columns (D, kPanel)
    void scores(const float* x, int64_t row, int64_t keys, int64_t width, const float* columns, float* to) const {
        multiply({keys, width, dim, {x + at(row), stride, 1}, plain(columns, kPanel), {}, to, kPanel});
    }
    // to (D, kPanel) = or += rows of x, transposed, times weights (keys, kPanel)
    void mix(const float* x, int64_t row, int64_t keys, int64_t width, const float* weights, float* to) const {
        multiply({dim,
                  width,
                  keys,
                  {x + at(row), 1, stride},
                  plain(weights, kPanel),
                  {row ? to : nullptr, kPanel},
                  to,
                  kPanel});
    }
    // to (keys, pitch) = or += weights (keys, kPanel) times rows (queries, pitch)
    void spread(const float* weights, int64_t keys, int64_t queries, const float* rows, bool add, float* to) const {
        multiply(
            {keys, pitch, queries, {weights, kPanel, 1}, plain(rows, pitch), {add ? to : nullptr, pitch}, to, pitch});
    }
};

int64_t keys_of(const Head& h, int64_t key) { return min(h.length - key, kKeys); }

struct ForwardMemory {
    float *rows, *queries, *sum, *scores;
    size_t bytes;

    ForwardMemory(Arrays arrays, int64_t dim) {
        rows = arrays.take<float>(kPanel * round_up(dim, kLanes));
        queries = arrays.take<float>(dim * kPanel);
        sum = arrays.take<float>(dim * kPanel);
        scores = arrays.take<float>(kKeys * kPanel);
        bytes = arrays.bytes();
    }
};

// A tile of scores to weights below the maximum so far; what was summed below another one is made to fit.
void soften(const Head& h, int64_t key, int64_t keys, const ForwardMemory& m, int64_t lane, Float& top, Float& total) {
    const Float peak = max(largest(m.scores + lane, keys), top);
    const Float shrink = exponential<true>(top - peak);
    top = peak;
    total = total * shrink + exponentials<true>(m.scores + lane, keys, peak);
    for (int64_t c = 0; key && c < h.dim; ++c) {
        float* sum = m.sum + c * kPanel + lane;
        store(sum, load(sum) * shrink);
    }
}

void attend(const SegmentAttention& p, const Head& h, const ForwardMemory& m) {
    const Blocks blocks(h.length);
    for (int64_t block = 0; block < blocks.count; ++block) {
        const int64_t query = blocks.begin(block), width = blocks.padded(block), real = blocks.real(block);
        h.copy_rows(p.q, query, real, p.scale, m.rows);
        transpose(m.rows, h.pitch, real, h.dim, m.queries, kPanel, true);
        Float top[kTileVectors], total[kTileVectors] = {};
        for (Float& v : top) v = broadcast(kLowest);
        for (int64_t key = 0; key < h.length; key += kKeys) {
            const int64_t keys = keys_of(h, key);
            h.scores(p.k, key, keys, width, m.queries, m.scores);
            for (int64_t lane = 0; lane < width; lane += kLanes) {
                soften(h, key, keys, m, lane, top[lane / kLanes], total[lane / kLanes]);
                if (h.drops.threshold) drop(m.scores + lane, keys, h.drops, query + lane, key);
            }
            h.mix(p.v, key, keys, width, m.scores, m.sum);
        }
        for (int64_t lane = 0; lane < width; lane += kLanes) {
            const Float factor = h.drops.scale / total[lane / kLanes];
            for (int64_t c = 0; c < h.dim; ++c) {
                float* sum = m.sum + c * kPanel + lane;
                store(sum, load(sum) * factor);
            }
        }
        transpose(m.sum, kPanel, h.dim, real, p.out + h.at(query), h.stride, false);
        for (int64_t i = 0; i < real; ++i) {
            float* statistics = p.statistics + h.statistics_at(query + i);
            statistics[0] = top[i / kLanes][i % kLanes];
            statistics[1] = 1.0f / total[i / kLanes][i % kLanes];
        }
    }
}

struct BackwardMemory {
    float *query_rows, *grad_rows, *out_rows;  // (kPanel, pitch)
    float *queries, *grad_out, *grad_queries;  // (D, kPanel)
    float *scores, *grad_scores;               // (kKeys, kPanel)
    float *grad_keys, *grad_values;            // (longest, pitch)
    size_t bytes;

    BackwardMemory(Arrays arrays, int64_t dim, int64_t longest) {
        const int64_t pitch = round_up(dim, kLanes);
        for (float** rows : {&query_rows, &grad_rows, &out_rows}) *rows = arrays.take<float>(kPanel * pitch);
        for (float** columns : {&queries, &grad_out, &grad_queries}) *columns = arrays.take<float>(dim * kPanel);
        for (float** tile : {&scores, &grad_scores}) *tile = arrays.take<float>(kKeys * kPanel);
        for (float** rows : {&grad_keys, &grad_values}) *rows = arrays.take<float>(longest * pitch);
        bytes = arrays.bytes();
    }
};

void attend_backward(const SegmentAttentionBackward& b, const Head& h, const BackwardMemory& m) {
    const SegmentAttention& p = b.forward;
    const Blocks blocks(h.length);
    for (int64_t block = 0; block < blocks.count; ++block) {
        const int64_t query = blocks.begin(block), width = blocks.padded(block), real = blocks.real(block);
        h.copy_rows(p.q, query, real, p.scale, m.query_rows);
        h.copy_rows(p.out, query, real, 1.0f, m.out_rows);
        h.copy_rows(b.grad_out, query, real, 1.0f, m.grad_rows);
        transpose(m.query_rows, h.pitch, real, h.dim, m.queries, kPanel, true);
        transpose(m.grad_rows, h.pitch, real, h.dim, m.grad_out, kPanel, true);
        float tops[kPanel] = {}, inverses[kPanel] = {};
        float means[kPanel] = {};  // of the weights' gradients, by weight
        for (int64_t i = 0; i < real; ++i) {
            Float total{};
            for (int64_t c = i * h.pitch; c < (i + 1) * h.pitch; c += kLanes)
                total += load(m.grad_rows + c) * load(m.out_rows + c);
            means[i] = sum(total);
            tops[i] = p.statistics[h.statistics_at(query + i)];
            inverses[i] = p.statistics[h.statistics_at(query + i) + 1];
        }
        for (int64_t key = 0; key < h.length; key += kKeys) {
            const int64_t keys = keys_of(h, key);
            h.scores(p.k, key, keys, width, m.queries, m.scores);
            h.scores(p.v, key, keys, width, m.grad_out, m.grad_scores);
            for (int64_t lane = 0; lane < width; lane += kLanes) {
                float *scores = m.scores + lane, *grads = m.grad_scores + lane;
                const Float top = load(tops + lane), inverse = load(inverses + lane), mean = load(means + lane);
                if (h.drops.threshold)
                    softmax_backward<true>(scores, grads, keys, top, inverse, mean, h.drops, query + lane, key);
                else
                    softmax_backward<true>(scores, grads, keys, top, inverse, mean);
            }
            h.spread(m.scores, keys, real, m.grad_rows, block, m.grad_values + key * h.pitch);
            h.spread(m.grad_scores, keys, real, m.query_rows, block, m.grad_keys + key * h.pitch);
            h.mix(p.k, key, keys, width, m.grad_scores, m.grad_queries);
        }
        transpose(m.grad_queries, kPanel, h.dim, real, b.grad_q + h.at(query), h.stride, false, p.scale);
    }
    for (int64_t j = 0; j < h.length; ++j)
        for (int64_t c = 0; c < h.dim; ++c) {
            b.grad_k[h.at(j) + c] = m.grad_keys[j * h.pitch + c];
            b.grad_v[h.at(j) + c] = m.grad_values[j * h.pitch + c];
        }
}

}  // namespace

void segment_attention(const SegmentAttention& p, int threads) {
    const std::vector<int32_t> order = largest_first(p.offsets, p.segments);
    const WorkerMemory scratch(ForwardMemory(Arrays(0), p.dim).bytes, threads);
    parallel_for(p.segments * p.heads, threads, [&](int64_t item, int worker) {
        const Head head(p, order[item / p.heads], item % p.heads);
        attend(p, head, ForwardMemory(scratch.piece(worker), p.dim));
    });
}

void segment_attention_backward(const SegmentAttentionBackward& b, int threads) {
    const SegmentAttention& p = b.forward;
    const std::vector<int32_t> order = largest_first(p.offsets, p.segments);
    const int64_t longest = p.segments ? p.offsets[order[0] + 1] - p.offsets[order[0]] : 0;
    const WorkerMemory scratch(BackwardMemory(Arrays(0), p.dim, longest).bytes, threads);
    parallel_for(p.segments * p.heads, threads, [&](int64_t item, int worker) {
        const Head head(p, order[item / p.heads], item % p.heads);
        attend_backward(b, head, BackwardMemory(scratch.piece(worker), p.dim, longest));
    });
}

}  // namespace sopr::SOPR_LEVEL
