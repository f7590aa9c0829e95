// Attention inside segments. Vector lanes hold a block of queries; tiles of keys stream past it. Forward is an online
// softmax, backward uses its statistics. One task owns a head of a segment, so every sum has a fixed order.
#include "cpu/arena.h"
#include "cpu/kernel_table.h"
#include "cpu/pool.h"
#include "cpu/softmax_tile.h"

namespace sopr::SOPR_LEVEL {
namespace {

// One segment and head of (T, H, D) arrays.
struct SegmentHead {
    int64_t begin, length, dim, heads;
    int64_t stride;                  // between rows of the arrays
    int64_t pitch;                   // between rows of scratch buffers, which are padded to whole vectors
    int64_t first, first_statistic;  // indices of the head's first value and statistic
    DropoutSite dropout;

    SegmentHead(const SegmentAttention& p, int64_t segment, int64_t head)
        : begin(p.offsets[segment]),
          length(p.offsets[segment + 1] - begin),
          dim(p.dim),
          heads(p.heads),
          stride(p.heads * p.dim),
          pitch(round_up(p.dim, kLanes)),
          first(begin * stride + head * dim),
          first_statistic((begin * p.heads + head) * 2),
          dropout(p.dropout, segment, head) {}

    int64_t index(int64_t row) const { return first + row * stride; }
    int64_t statistics_index(int64_t row) const { return first_statistic + row * heads * 2; }

    // to (count, pitch) = factor * rows of x, padded with zeros
    void copy_rows(const float* x, int64_t row, int64_t count, float factor, float* to) const {
        for (int64_t i = 0; i < count; ++i, to += pitch)
            for (int64_t c = 0; c < pitch; ++c) to[c] = c < dim ? factor * x[index(row + i) + c] : 0.0f;
    }

    // scores (keys, kPanel) = rows of x times columns (D, kPanel)
    void scores(const float* x, int64_t row, int64_t keys, int64_t width, const float* columns, float* to) const {
        multiply({keys, width, dim, {x + index(row), stride, 1}, plain(columns, kPanel), {}, to, kPanel});
    }
    // to (D, kPanel) = transposed rows of x times weights (keys, kPanel), added to `to` if row > 0
    void add_weighted_rows(const float* x, int64_t row, int64_t keys, int64_t width, const float* weights,
                           float* to) const {
        multiply({dim,
                  width,
                  keys,
                  {x + index(row), 1, stride},
                  plain(weights, kPanel),
                  {row ? to : nullptr, kPanel},
                  to,
                  kPanel});
    }
    // to (keys, pitch) = weights (keys, kPanel) times rows (queries, pitch), added to `to` if `add`
    void add_weighted_queries(const float* weights, int64_t keys, int64_t queries, const float* rows, bool add,
                              float* to) const {
        multiply(
            {keys, pitch, queries, {weights, kPanel, 1}, plain(rows, pitch), {add ? to : nullptr, pitch}, to, pitch});
    }
};

int64_t keys_of(const SegmentHead& h, int64_t key) { return min(h.length - key, kKeys); }

struct ForwardMemory {
    float *rows, *queries, *sum, *scores;
    int64_t bytes;

    ForwardMemory(Arena arrays, int64_t dim) {
        rows = arrays.take<float>(kPanel * round_up(dim, kLanes));
        queries = arrays.take<float>(dim * kPanel);
        sum = arrays.take<float>(dim * kPanel);
        scores = arrays.take<float>(kKeys * kPanel);
        bytes = arrays.bytes();
    }
};

// Online softmax: scores of a tile become exp(score - maximum); earlier sums are rescaled to the new maximum.
void online_softmax_step(const SegmentHead& h, int64_t key, int64_t keys, const ForwardMemory& m, int64_t lane,
                         Float& maximum, Float& total) {
    const Float new_maximum = max(largest(m.scores + lane, keys), maximum);
    const Float factor = exponential<true>(maximum - new_maximum);
    maximum = new_maximum;
    total = total * factor + exponentials<true>(m.scores + lane, keys, new_maximum);
    for (int64_t c = 0; key && c < h.dim; ++c) {
        float* sum = m.sum + c * kPanel + lane;
        store(sum, load(sum) * factor);
    }
}

void attend(const SegmentAttention& p, const SegmentHead& h, const ForwardMemory& m) {
    const QueryBlocks blocks(h.length);
    for (int64_t block = 0; block < blocks.count; ++block) {
        const int64_t query = blocks.begin(block), width = blocks.padded(block), size = blocks.size(block);
        h.copy_rows(p.q, query, size, p.scale, m.rows);
        transpose(m.rows, h.pitch, size, h.dim, m.queries, kPanel, true);
        Float maximum[kTileVectors], total[kTileVectors] = {};
        for (Float& v : maximum) v = broadcast(kLowest);
        for (int64_t key = 0; key < h.length; key += kKeys) {
            if (cancelled()) return;
            const int64_t keys = keys_of(h, key);
            h.scores(p.k, key, keys, width, m.queries, m.scores);
            for (int64_t lane = 0; lane < width; lane += kLanes) {
                online_softmax_step(h, key, keys, m, lane, maximum[lane / kLanes], total[lane / kLanes]);
                if (h.dropout.threshold) drop(m.scores + lane, keys, h.dropout, query + lane, key);
            }
            h.add_weighted_rows(p.v, key, keys, width, m.scores, m.sum);
        }
        for (int64_t lane = 0; lane < width; lane += kLanes) {
            const Float factor = h.dropout.scale / total[lane / kLanes];
            for (int64_t c = 0; c < h.dim; ++c) {
                float* sum = m.sum + c * kPanel + lane;
                store(sum, load(sum) * factor);
            }
        }
        transpose(m.sum, kPanel, h.dim, size, p.out + h.index(query), h.stride, false);
        for (int64_t i = 0; i < size; ++i) {
            float* statistics = p.statistics + h.statistics_index(query + i);
            statistics[0] = maximum[i / kLanes][i % kLanes];
            statistics[1] = 1.0f / total[i / kLanes][i % kLanes];
        }
    }
}

struct BackwardMemory {
    float *query_rows, *grad_rows, *out_rows;  // (kPanel, pitch)
    float *queries, *grad_out, *grad_queries;  // (D, kPanel)
    float *scores, *grad_scores;               // (kKeys, kPanel)
    float *grad_keys, *grad_values;            // (longest, pitch)
    int64_t bytes;

    BackwardMemory(Arena arrays, int64_t dim, int64_t longest) {
        const int64_t pitch = round_up(dim, kLanes);
        for (float** rows : {&query_rows, &grad_rows, &out_rows}) *rows = arrays.take<float>(kPanel * pitch);
        for (float** columns : {&queries, &grad_out, &grad_queries}) *columns = arrays.take<float>(dim * kPanel);
        for (float** tile : {&scores, &grad_scores}) *tile = arrays.take<float>(kKeys * kPanel);
        for (float** rows : {&grad_keys, &grad_values}) *rows = arrays.take<float>(longest * pitch);
        bytes = arrays.bytes();
    }
};

void attend_backward(const SegmentAttentionBackward& b, const SegmentHead& h, const BackwardMemory& m) {
    const SegmentAttention& p = b.forward;
    const QueryBlocks blocks(h.length);
    for (int64_t block = 0; block < blocks.count; ++block) {
        const int64_t query = blocks.begin(block), width = blocks.padded(block), size = blocks.size(block);
        h.copy_rows(p.q, query, size, p.scale, m.query_rows);
        h.copy_rows(p.out, query, size, 1.0f, m.out_rows);
        h.copy_rows(b.grad_out, query, size, 1.0f, m.grad_rows);
        transpose(m.query_rows, h.pitch, size, h.dim, m.queries, kPanel, true);
        transpose(m.grad_rows, h.pitch, size, h.dim, m.grad_out, kPanel, true);
        float maxima[kPanel] = {}, inverses[kPanel] = {};
        float means[kPanel] = {};  // sum over keys of weight * gradient of the weight
        for (int64_t i = 0; i < size; ++i) {
            Float total{};
            for (int64_t c = i * h.pitch; c < (i + 1) * h.pitch; c += kLanes)
                total += load(m.grad_rows + c) * load(m.out_rows + c);
            means[i] = sum(total);
            maxima[i] = p.statistics[h.statistics_index(query + i)];
            inverses[i] = p.statistics[h.statistics_index(query + i) + 1];
        }
        for (int64_t key = 0; key < h.length; key += kKeys) {
            if (cancelled()) return;
            const int64_t keys = keys_of(h, key);
            h.scores(p.k, key, keys, width, m.queries, m.scores);
            h.scores(p.v, key, keys, width, m.grad_out, m.grad_scores);
            for (int64_t lane = 0; lane < width; lane += kLanes) {
                float *scores = m.scores + lane, *grads = m.grad_scores + lane;
                const Float maximum = load(maxima + lane), inverse = load(inverses + lane), mean = load(means + lane);
                if (h.dropout.threshold)
                    softmax_backward<true>(scores, grads, keys, maximum, inverse, mean, h.dropout, query + lane, key);
                else
                    softmax_backward<true>(scores, grads, keys, maximum, inverse, mean);
            }
            h.add_weighted_queries(m.scores, keys, size, m.grad_rows, block, m.grad_values + key * h.pitch);
            h.add_weighted_queries(m.grad_scores, keys, size, m.query_rows, block, m.grad_keys + key * h.pitch);
            h.add_weighted_rows(p.k, key, keys, width, m.grad_scores, m.grad_queries);
        }
        transpose(m.grad_queries, kPanel, h.dim, size, b.grad_q + h.index(query), h.stride, false, p.scale);
    }
    for (int64_t j = 0; j < h.length; ++j)
        for (int64_t c = 0; c < h.dim; ++c) {
            b.grad_k[h.index(j) + c] = m.grad_keys[j * h.pitch + c];
            b.grad_v[h.index(j) + c] = m.grad_values[j * h.pitch + c];
        }
}

}  // namespace

void segment_attention(const SegmentAttention& p, int threads) {
    const WorkerMemory scratch(ForwardMemory(Arena(), p.dim).bytes, threads);
    parallel_for(p.segments * p.heads, threads, [&](int64_t item, int worker) {
        const SegmentHead head(p, p.order[item / p.heads], item % p.heads);
        attend(p, head, ForwardMemory(scratch.arena(worker), p.dim));
    });
}

void segment_attention_backward(const SegmentAttentionBackward& b, int threads) {
    const SegmentAttention& p = b.forward;
    const int64_t longest = p.segments ? p.offsets[p.order[0] + 1] - p.offsets[p.order[0]] : 0;
    const WorkerMemory scratch(BackwardMemory(Arena(), p.dim, longest).bytes, threads);
    parallel_for(p.segments * p.heads, threads, [&](int64_t item, int worker) {
        const SegmentHead head(p, p.order[item / p.heads], item % p.heads);
        attend_backward(b, head, BackwardMemory(scratch.arena(worker), p.dim, longest));
    });
}

}  // namespace sopr::SOPR_LEVEL
