#include "cpu/pool.h"
#include "cpu/segment_encoder.h"

namespace sopr::SOPR_LEVEL {
namespace {

constexpr float kLn2 = 0.6931471805599453f;

}  // namespace

void attend(const Shape& s, const Segment& segment, uint32_t layer, const Tape& tape, const Scratch& scratch) {
    const int64_t length = segment.length, tokens = tokens_pitch(length);
    const Operands& o = scratch.operands;
    transpose(tape.qkv, s.qkv_pitch, length, s.width, scratch.queries, tokens, true);
    const Left keys = o.by_columns(tape.qkv + s.width, length, s.width, s.qkv_pitch, scratch.buffers.keys);
    const Right queries = o.right(scratch.queries, s.width, tokens, tokens, scratch.buffers.queries);
    const Left values = o.by_rows(tape.qkv + 2 * s.width, length, s.width, s.qkv_pitch, scratch.buffers.values);
    const QueryBlocks blocks(length);
    for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t column = h * s.head_width;
        float* statistics = tape.statistics + h * 2 * tokens;
        const DropoutSite site = segment.dropout_at(layer, kAttentionWeights, uint32_t(h));
        for (int64_t block = 0; block < blocks.count; ++block) {
            const int64_t query = blocks.begin(block), width = blocks.padded(block);
            float* out = tape.attended + column * tokens + query;
            Float maximum[kTileVectors], total[kTileVectors] = {};
            for (Float& m : maximum) m = broadcast(kLowest);
            for (int64_t first = 0; first < length; first += kKeys) {
                if (cancelled()) return;
                const int64_t count = min(length - first, kKeys);
                float* scores = scratch.scores;
                multiply({count,
                          width,
                          o.depth(s.head_width),
                          o.from(keys, first, column),
                          o.from(queries, column, query),
                          {},
                          scores,
                          kPanel});
                for (int64_t j = 0; j * kLanes < width; ++j) {
                    float* tile = scores + j * kLanes;
                    const Float new_maximum = max(largest(tile, count), maximum[j]);
                    if (first) {
                        const Float factor = exp2_nonpositive(maximum[j] - new_maximum);
                        total[j] *= factor;
                        for (int64_t f = 0; f < s.head_width; ++f) {
                            float* sum = out + f * tokens + j * kLanes;
                            store(sum, load(sum) * factor);
                        }
                    }
                    maximum[j] = new_maximum;
                    total[j] += exponentials(tile, count, new_maximum);
                    if (segment.dropout.threshold) drop(tile, count, site, query + j * kLanes, first);
                }
                multiply({s.head_width,
                          width,
                          o.depth(count),
                          o.from(values, column, first),
                          o.right(scores, count, width, kPanel, scratch.buffers.tile[0]),
                          {first ? out : nullptr, tokens},
                          out,
                          tokens});
            }
            for (int64_t j = 0; j * kLanes < width; ++j) {
                const Float inverse = 1.0f / total[j];
                for (int64_t f = 0; f < s.head_width; ++f) {
                    float* sum = out + f * tokens + j * kLanes;
                    store(sum, load(sum) * (inverse * segment.dropout.scale));
                }
                store(statistics + query + j * kLanes, maximum[j]);
                store(statistics + tokens + query + j * kLanes, inverse);
            }
        }
    }
}

// From the gradient of the attended rows in scratch.grad_attended to that of the scaled queries, keys and values in
// scratch.grad_qkv.
void attend_backward(const Shape& s, const Segment& segment, uint32_t layer, const Tape& tape, const Scratch& scratch) {
    const int64_t length = segment.length, tokens = tokens_pitch(length);
    const Operands& o = scratch.operands;
    const auto& buffers = scratch.buffers;
    transpose(tape.qkv, s.qkv_pitch, length, s.width, scratch.queries, tokens, true);
    // d 2^x / dx = 2^x ln 2.
    transpose(scratch.grad_attended, s.pitch, length, s.width, scratch.grad_attended_t, tokens, true, kLn2);
    const Left keys_values = o.by_columns(tape.qkv + s.width, length, 2 * s.width, s.qkv_pitch, buffers.keys);
    const Left key_rows = o.by_rows(tape.qkv + s.width, length, s.width, s.qkv_pitch, buffers.key_rows);
    const Right query_rows = o.right(tape.qkv, length, s.width, s.qkv_pitch, buffers.query_rows);
    const Right grad_rows = o.right(scratch.grad_attended, length, s.width, s.pitch, buffers.grad);
    const Right queries = o.right(scratch.queries, s.width, tokens, tokens, buffers.queries);
    const Right grad_t = o.right(scratch.grad_attended_t, s.width, tokens, tokens, buffers.values);
    const QueryBlocks blocks(length);
    float *scores = scratch.scores, *grads = scratch.grad_scores;
    for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t column = h * s.head_width, key_column = s.width + column, value_column = s.width + key_column;
        const float* statistics = tape.statistics + h * 2 * tokens;
        const DropoutSite site = segment.dropout_at(layer, kAttentionWeights, uint32_t(h));
        for (int64_t block = 0; block < blocks.count; ++block) {
            const int64_t query = blocks.begin(block), width = blocks.padded(block), size = blocks.size(block);
            const float* out = tape.attended + column * tokens + query;
            const float* grad_out = scratch.grad_attended_t + column * tokens + query;
            Float mean[kTileVectors] = {};
            for (int64_t j = 0; j * kLanes < width; ++j)
                for (int64_t f = 0; f < s.head_width; ++f)
                    mean[j] += load(out + f * tokens + j * kLanes) * load(grad_out + f * tokens + j * kLanes);
            for (int64_t first = 0; first < length; first += kKeys) {
                if (cancelled()) return;
                const int64_t count = min(length - first, kKeys);
                multiply({count,
                          width,
                          o.depth(s.head_width),
                          o.from(keys_values, first, column),
                          o.from(queries, column, query),
                          {},
                          scores,
                          kPanel});
                multiply({count,
                          width,
                          o.depth(s.head_width),
                          o.from(keys_values, first, s.width + column),
                          o.from(grad_t, column, query),
                          {},
                          grads,
                          kPanel});
                for (int64_t j = 0; j * kLanes < width; ++j) {
                    float *score = scores + j * kLanes, *grad = grads + j * kLanes;
                    const Float maximum = load(statistics + query + j * kLanes);
                    const Float inverse = load(statistics + tokens + query + j * kLanes);
                    softmax_backward(score, grad, count, maximum, inverse, mean[j], site, query + j * kLanes, first);
                }
                float* grad_keys = scratch.grad_qkv + first * s.qkv_pitch + key_column;
                float* grad_values = scratch.grad_qkv + first * s.qkv_pitch + value_column;
                multiply({count,
                          s.head_width,
                          o.depth(size),
                          o.by_columns(scores, count, width, kPanel, buffers.tile[0]),
                          o.from(grad_rows, query, column),
                          {block ? grad_values : nullptr, s.qkv_pitch},
                          grad_values,
                          s.qkv_pitch,
                          false,
                          true});
                multiply({count,
                          s.head_width,
                          o.depth(size),
                          o.by_columns(grads, count, width, kPanel, buffers.tile[1]),
                          o.from(query_rows, query, column),
                          {block ? grad_keys : nullptr, s.qkv_pitch},
                          grad_keys,
                          s.qkv_pitch,
                          false,
                          true});
                multiply({s.head_width,
                          width,
                          o.depth(count),
                          o.from(key_rows, column, first),
                          o.right(grads, count, width, kPanel, buffers.tile[2]),
                          {first ? scratch.grad_queries : nullptr, kPanel},
                          scratch.grad_queries,
                          kPanel});
            }
            transpose(scratch.grad_queries, kPanel, s.head_width, size, scratch.grad_qkv + query * s.qkv_pitch + column,
                      s.qkv_pitch, false);
        }
    }
}

}  // namespace sopr::SOPR_LEVEL
