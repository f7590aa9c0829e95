#include "cpu/attention_tile.h"
#include "cpu/encoder.h"

namespace sopr::SOPR_LEVEL {
namespace {

constexpr float kLn2 = 0.6931471805599453f;

}  // namespace

void attend(const Shape& s, const Segment& segment, uint32_t layer, const Tape& tape, const Scratch& scratch) {
    const int64_t length = segment.length, tokens = tokens_pitch(length);
    transpose(tape.joint, s.joint_pitch, length, s.width, scratch.queries, tokens, true);
    const Blocks blocks(length);
    float* scores = scratch.scores;
    for (int64_t h = 0; h < s.heads; ++h) {
        const float* keys = tape.joint + s.width + h * s.head;
        const float* values = keys + s.width;
        float* statistics = tape.statistics + h * 2 * tokens;
        const Drops drops = segment.at(layer, kAttentionWeights, uint32_t(h));
        for (int64_t block = 0; block < blocks.count; ++block) {
            const int64_t query = blocks.begin(block), width = blocks.padded(block);
            float* out = tape.attended + h * s.head * tokens + query;
            Float top[kTileVectors], total[kTileVectors] = {};
            for (Float& m : top) m = broadcast(-__builtin_inff());
            for (int64_t first = 0; first < length; first += kKeys) {
                const int64_t count = length - first < kKeys ? length - first : kKeys;
                multiply({count,
                          width,
                          s.head,
                          {keys + first * s.joint_pitch, s.joint_pitch, 1},
                          plain(scratch.queries + h * s.head * tokens + query, tokens),
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
                            float* at = out + f * tokens + j * kLanes;
                            store(at, load(at) * shrink);
                        }
                    }
                    top[j] = peak;
                    total[j] += exponentials(column, count, peak);
                    if (segment.dropout) drop(column, count, drops, query + j * kLanes, first);
                }
                multiply({s.head,
                          width,
                          count,
                          {values + first * s.joint_pitch, 1, s.joint_pitch},
                          plain(scores, kPanel),
                          {first ? out : nullptr, tokens},
                          out,
                          tokens});
            }
            for (int64_t j = 0; j * kLanes < width; ++j) {
                const Float inverse = 1.0f / total[j];
                for (int64_t f = 0; f < s.head; ++f) {
                    float* at = out + f * tokens + j * kLanes;
                    store(at, load(at) * (inverse * segment.drops.scale));
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
    transpose(tape.joint, s.joint_pitch, length, s.width, scratch.queries, tokens, true);
    // Scores are exponents of 2: their gradients carry a factor ln 2.
    transpose(scratch.grad_attended, s.pitch, length, s.width, scratch.grad_attended_t, tokens, true, kLn2);
    const Blocks blocks(length);
    float *scores = scratch.scores, *grads = scratch.grad_scores;
    for (int64_t h = 0; h < s.heads; ++h) {
        const int64_t query_at = h * s.head, key_at = s.width + query_at, value_at = s.width + key_at;
        const float *keys = tape.joint + key_at, *values = tape.joint + value_at;
        const float* statistics = tape.statistics + h * 2 * tokens;
        const Drops drops = segment.at(layer, kAttentionWeights, uint32_t(h));
        for (int64_t block = 0; block < blocks.count; ++block) {
            const int64_t query = blocks.begin(block), width = blocks.padded(block), real = blocks.real(block);
            const float* out = tape.attended + query_at * tokens + query;
            const float* grad_out = scratch.grad_attended_t + query_at * tokens + query;
            Float mean[kTileVectors] = {};
            for (int64_t j = 0; j * kLanes < width; ++j)
                for (int64_t f = 0; f < s.head; ++f)
                    mean[j] += load(out + f * tokens + j * kLanes) * load(grad_out + f * tokens + j * kLanes);
            for (int64_t first = 0; first < length; first += kKeys) {
                const int64_t count = length - first < kKeys ? length - first : kKeys;
                const int64_t at = first * s.joint_pitch;
                multiply({count,
                          width,
                          s.head,
                          {keys + at, s.joint_pitch, 1},
                          plain(scratch.queries + query_at * tokens + query, tokens),
                          {},
                          scores,
                          kPanel});
                multiply({count,
                          width,
                          s.head,
                          {values + at, s.joint_pitch, 1},
                          plain(grad_out, tokens),
                          {},
                          grads,
                          kPanel});
                for (int64_t j = 0; j * kLanes < width; ++j) {
                    float *score = scores + j * kLanes, *grad = grads + j * kLanes;
                    const Float top = load(statistics + query + j * kLanes);
                    const Float inverse = load(statistics + tokens + query + j * kLanes);
                    if (segment.dropout)
                        softmax_backward(score, grad, count, top, inverse, mean[j], drops, query + j * kLanes, first);
                    else
                        softmax_backward(score, grad, count, top, inverse, mean[j]);
                }
                float *grad_keys = scratch.grad_joint + at + key_at, *grad_values = scratch.grad_joint + at + value_at;
                multiply({count,
                          s.head,
                          real,
                          {scores, kPanel, 1},
                          plain(scratch.grad_attended + query * s.pitch + query_at, s.pitch),
                          {block ? grad_values : nullptr, s.joint_pitch},
                          grad_values,
                          s.joint_pitch,
                          false,
                          true});
                multiply({count,
                          s.head,
                          real,
                          {grads, kPanel, 1},
                          plain(tape.joint + query * s.joint_pitch + query_at, s.joint_pitch),
                          {block ? grad_keys : nullptr, s.joint_pitch},
                          grad_keys,
                          s.joint_pitch,
                          false,
                          true});
                multiply({s.head,
                          width,
                          count,
                          {keys + at, 1, s.joint_pitch},
                          plain(grads, kPanel),
                          {first ? scratch.grad_queries : nullptr, kPanel},
                          scratch.grad_queries,
                          kPanel});
            }
            transpose(scratch.grad_queries, kPanel, s.head, real, scratch.grad_joint + query * s.joint_pitch + query_at,
                      s.joint_pitch, false);
        }
    }
}

}  // namespace sopr::SOPR_LEVEL
