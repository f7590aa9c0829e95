#include "cpu/encoder.h"

namespace sopr::SOPR_LEVEL {
namespace {

constexpr float kLn2 = 0.6931471805599453f;

// The queries of a segment in blocks of at most kTileVectors vectors, all about as large.
struct Blocks {
    int64_t length, vectors, count;
    explicit Blocks(int64_t length) : length(length), vectors(tokens_pitch(length) / kLanes) {
        count = (vectors + kTileVectors - 1) / kTileVectors;
    }
    int64_t begin(int64_t block) const { return vectors * block / count * kLanes; }
    int64_t padded(int64_t block) const { return begin(block + 1) - begin(block); }
    int64_t real(int64_t block) const { return (block + 1 < count ? begin(block + 1) : length) - begin(block); }
};

Word lanes_from(int64_t first) {
    Word lane;
    for (int i = 0; i < kLanes; ++i) lane[i] = uint32_t(i);
    return lane + uint32_t(first);
}

Word draw(const Words& words, int column) {
    const Word w = words.word[column / 2];
    return column % 2 ? w >> 16 : w & 0xFFFFu;
}

Float largest(const float* scores, int64_t keys) {
    Float m[4];
    for (Float& v : m) v = broadcast(-__builtin_inff());
    for (int64_t k = 0; k < keys; ++k) m[k % 4] = max(m[k % 4], load(scores + k * kPanel));
    return max(max(m[0], m[1]), max(m[2], m[3]));
}

// scores = 2^(scores - top), for one vector of queries; returns their sum.
Float exponentials(float* scores, int64_t keys, Float top) {
    Float total{};
    for (int64_t k = 0; k < keys; ++k) {
        const Float p = exp2_nonpositive(load(scores + k * kPanel) - top);
        total += p;
        store(scores + k * kPanel, p);
    }
    return total;
}

// Zeros where attention weights are dropped; key `first` is a multiple of 8.
void drop(float* weights, int64_t keys, const Drops& drops, int64_t query, int64_t first) {
    for (int64_t k = 0; k < keys; k += 8) {
        const Words words = drops.words(Word{} + uint32_t((first + k) / 8), lanes_from(query));
        for (int i = 0; i < 8 && k + i < keys; ++i) {
            float* at = weights + (k + i) * kPanel;
            store(at, keep(load(at), draw(words, i), drops.threshold));
        }
    }
}

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

// From scores and the gradients of the weights after dropout to those weights and the gradients of the scores,
// for one vector of queries. `mean` is the sum over keys of weight times gradient.
static void softmax_backward(float* scores, float* grads, int64_t keys, Float top, Float inverse, Float mean) {
    for (int64_t k = 0; k < keys; ++k) {
        const Float p = exp2_nonpositive(load(scores + k * kPanel) - top) * inverse;
        store(scores + k * kPanel, p);
        store(grads + k * kPanel, p * (load(grads + k * kPanel) - mean));
    }
}

static void softmax_backward(float* scores, float* grads, int64_t keys, Float top, Float inverse, Float mean,
                             const Drops& drops, int64_t query, int64_t first) {
    for (int64_t k = 0; k < keys; k += 8) {
        const Words words = drops.words(Word{} + uint32_t((first + k) / 8), lanes_from(query));
        for (int i = 0; i < 8 && k + i < keys; ++i) {
            float *score = scores + (k + i) * kPanel, *grad = grads + (k + i) * kPanel;
            const Float p = exp2_nonpositive(load(score) - top) * inverse;
            const Word bits = draw(words, i);
            store(score, keep(p * drops.scale, bits, drops.threshold));
            store(grad, p * (keep(load(grad) * drops.scale, bits, drops.threshold) - mean));
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
