#include "cpu/attention_tile.h"
#include "cpu/encoder.h"

namespace sopr::SOPR_LEVEL {
namespace {

constexpr float kLn2 = 0.6931471805599453f;

}  // namespace

void attend(const Shape& s, const Segment& segment, uint32_t layer, const Tape& tape, const Scratch& scratch) {
    const int64_t length = segment.length, tokens = tokens_pitch(length);
    const Operands& o = scratch.operands;
    transpose(tape.joint, s.joint_pitch, length, s.width, scratch.queries, tokens, true);
    const Left keys = o.by_columns(tape.joint + s.width, length, s.width, s.joint_pitch, scratch.buffers.keys);
    const Right queries = o.right(scratch.queries, s.width, tokens, tokens, scratch.buffers.queries);
    const Left values = o.by_rows(tape.joint + 2 * s.width, length, s.width, s.joint_pitch, scratch.buffers.values);
    const Blocks blocks(length);
    for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t at = h * s.head;
        float* statistics = tape.statistics + h * 2 * tokens;
        const Drops drops = segment.at(layer, kAttentionWeights, uint32_t(h));
        for (int64_t block = 0; block < blocks.count; ++block) {
            const int64_t query = blocks.begin(block), width = blocks.padded(block);
            float* out = tape.attended + at * tokens + query;
            Float top[kTileVectors], total[kTileVectors] = {};
            for (Float& m : top) m = broadcast(kLowest);
            for (int64_t first = 0; first < length; first += kKeys) {
                const int64_t count = min(length - first, kKeys);
                float* scores = scratch.scores;
                multiply({count,
                          width,
                          o.depth(s.head),
                          o.from(keys, first, at),
                          o.from(queries, at, query),
                          {},
                          scores,
                          kPanel});
                for (int64_t j = 0; j * kLanes < width; ++j) {
                    float* column = scores + j * kLanes;
                    const Float peak = max(largest(column, count), top[j]);
                    if (first) {
                        const Float shrink = exp2_nonpositive(top[j] - peak);
                        total[j] *= shrink;
                        for (int64_t f = 0; f < s.head; ++f) {
                            float* sum = out + f * tokens + j * kLanes;
                            store(sum, load(sum) * shrink);
                        }
                    }
                    top[j] = peak;
                    total[j] += exponentials(column, count, peak);
                    if (segment.drops.threshold) drop(column, count, drops, query + j * kLanes, first);
                }
                multiply({s.head,
                          width,
                          o.depth(count),
                          o.from(values, at, first),
                          o.right(scores, count, width, kPanel, scratch.buffers.tile[0]),
                          {first ? out : nullptr, tokens},
                          out,
                          tokens});
            }
            for (int64_t j = 0; j * kLanes < width; ++j) {
                const Float inverse = 1.0f / total[j];
                for (int64_t f = 0; f < s.head; ++f) {
                    float* sum = out + f * tokens + j * kLanes;
                    store(sum, load(sum) * (inverse * segment.drops.scale));
                }
                store(statistics + query + j * kLanes, top[j]);
                store(statistics + tokens + query + j * kLanes, inverse);
            }
        }
    }
}

// The gradients of queries, keys and values (those of the folded queries) in scratch.grad_joint, from those of the
// attended rows in scratch.grad_attended.
void attend_backward(const Shape& s, const Segment& segment, uint32_t layer, const Tape& tape, const Scratch& scratch) {
    const int64_t length = segment.length, tokens = tokens_pitch(length);
    const Operands& o = scratch.operands;
    const auto& buffers = scratch.buffers;
    transpose(tape.joint, s.joint_pitch, length, s.width, scratch.queries, tokens, true);
    // Scores are exponents of 2: their gradients carry a factor ln 2.
    transpose(scratch.grad_attended, s.pitch, length, s.width, scratch.grad_attended_t, tokens, true, kLn2);
    const Left keys_values = o.by_columns(tape.joint + s.width, length, 2 * s.width, s.joint_pitch, buffers.keys);
    const Left key_rows = o.by_rows(tape.joint + s.width, length, s.width, s.joint_pitch, buffers.key_rows);
    const Right query_rows = o.right(tape.joint, length, s.width, s.joint_pitch, buffers.query_rows);
    const Right grad_rows = o.right(scratch.grad_attended, length, s.width, s.pitch, buffers.grad);
    const Right queries = o.right(scratch.queries, s.width, tokens, tokens, buffers.queries);
    const Right grad_t = o.right(scratch.grad_attended_t, s.width, tokens, tokens, buffers.values);
    const Blocks blocks(length);
    float *scores = scratch.scores, *grads = scratch.grad_scores;
    for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t at = h * s.head, key_at = s.width + at, value_at = s.width + key_at;
        const float* statistics = tape.statistics + h * 2 * tokens;
        const Drops drops = segment.at(layer, kAttentionWeights, uint32_t(h));
        for (int64_t block = 0; block < blocks.count; ++block) {
            const int64_t query = blocks.begin(block), width = blocks.padded(block), real = blocks.real(block);
            const float* out = tape.attended + at * tokens + query;
            const float* grad_out = scratch.grad_attended_t + at * tokens + query;
            Float mean[kTileVectors] = {};
            for (int64_t j = 0; j * kLanes < width; ++j)
                for (int64_t f = 0; f < s.head; ++f)
                    mean[j] += load(out + f * tokens + j * kLanes) * load(grad_out + f * tokens + j * kLanes);
            for (int64_t first = 0; first < length; first += kKeys) {
                const int64_t count = min(length - first, kKeys);
                multiply({count,
                          width,
                          o.depth(s.head),
                          o.from(keys_values, first, at),
                          o.from(queries, at, query),
                          {},
                          scores,
                          kPanel});
                multiply({count,
                          width,
                          o.depth(s.head),
                          o.from(keys_values, first, s.width + at),
                          o.from(grad_t, at, query),
                          {},
                          grads,
                          kPanel});
                for (int64_t j = 0; j * kLanes < width; ++j) {
                    float *score = scores + j * kLanes, *grad = grads + j * kLanes;
                    const Float top = load(statistics + query + j * kLanes);
                    const Float inverse = load(statistics + tokens + query + j * kLanes);
                    if (segment.drops.threshold)
                        softmax_backward(score, grad, count, top, inverse, mean[j], drops, query + j * kLanes, first);
                    else
                        softmax_backward(score, grad, count, top, inverse, mean[j]);
                }
                float* grad_keys = scratch.grad_joint + first * s.joint_pitch + key_at;
                float* grad_values = scratch.grad_joint + first * s.joint_pitch + value_at;
                multiply({count,
                          s.head,
                          o.depth(real),
                          o.by_columns(scores, count, width, kPanel, buffers.tile[0]),
                          o.from(grad_rows, query, at),
                          {block ? grad_values : nullptr, s.joint_pitch},
                          grad_values,
                          s.joint_pitch,
                          false,
                          true});
                multiply({count,
                          s.head,
                          o.depth(real),
                          o.by_columns(grads, count, width, kPanel, buffers.tile[1]),
                          o.from(query_rows, query, at),
                          {block ? grad_keys : nullptr, s.joint_pitch},
                          grad_keys,
                          s.joint_pitch,
                          false,
                          true});
                multiply({s.head,
                          width,
                          o.depth(count),
                          o.from(key_rows, at, first),
                          o.right(grads, count, width, kPanel, buffers.tile[2]),
                          {first ? scratch.grad_queries : nullptr, kPanel},
                          scratch.grad_queries,
                          kPanel});
            }
            transpose(scratch.grad_queries, kPanel, s.head, real, scratch.grad_joint + query * s.joint_pitch + at,
                      s.joint_pitch, false);
        }
    }
}

}  // namespace sopr::SOPR_LEVEL
