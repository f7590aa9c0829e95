#include "cpu/encoder.h"

#if defined(__AVX512BF16__)

namespace sopr::SOPR_LEVEL {
namespace {

// Weights (key pairs, queries) = 2^(scores - top), for one vector of queries; returns their sum before rounding.
Float exponentials(const float* scores, int64_t keys, Float top, float* weights) {
    Float total{};
    int64_t k = 0;
    for (; k + 1 < keys; k += 2) {
        const Float p = exp2_nonpositive(load(scores + k * kPanel) - top);
        const Float q = exp2_nonpositive(load(scores + (k + 1) * kPanel) - top);
        total += p + q;
        store(weights + k / 2 * kPanel, pairs(p, q));
    }
    if (k == keys) return total;
    const Float p = exp2_nonpositive(load(scores + k * kPanel) - top);
    store(weights + k / 2 * kPanel, pairs(p, Float{}));
    return total + p;
}

// As attend() in float32.
void attend(const Shape& s, int64_t length, const NarrowTape& tape) {
    const int64_t tokens = tokens_pitch(length), joint_row = s.joint_pitch / 2;
    static const float zeros[kLanes] = {};
    transpose(tape.joint, joint_row, length, s.width / 2, tape.queries, tokens, true);
    for (int64_t t = 0; t < length; t += 2) {
        const float* row = tape.joint + t * joint_row + s.width;
        for (int64_t e = 0; e < s.pitch; e += kLanes)
            store(tape.values + t / 2 * s.pitch + e,
                  pairs(row + e / 2, t + 1 < length ? row + joint_row + e / 2 : zeros));
    }
    const Blocks blocks(length);
    for (int64_t h = 0; h < s.heads; ++h) {
        const float* keys = tape.joint + (s.width + h * s.head) / 2;
        const float* values = tape.values + h * s.head;
        for (int64_t block = 0; block < blocks.count; ++block) {
            const int64_t query = blocks.begin(block), width = blocks.padded(block);
            Float top[kTileVectors], total[kTileVectors] = {};
            for (Float& m : top) m = broadcast(-__builtin_inff());
            for (int64_t first = 0; first < length; first += kKeys) {
                const int64_t count = length - first < kKeys ? length - first : kKeys;
                multiply({count,
                          width,
                          s.head / 2,
                          {keys + first * joint_row, joint_row, 1},
                          plain(tape.queries + h * s.head / 2 * tokens + query, tokens),
                          {},
                          tape.scores,
                          kPanel,
                          false,
                          false,
                          true});
                for (int64_t j = 0; j * kLanes < width; ++j) {
                    const float* scores = tape.scores + j * kLanes;
                    const Float peak = max(largest(scores, count), top[j]);
                    const Float shrink = exp2_nonpositive(top[j] - peak);
                    top[j] = peak;
                    total[j] = total[j] * shrink + exponentials(scores, count, peak, tape.weights + j * kLanes);
                    for (int64_t f = 0; first && f < s.head; ++f) {
                        float* at = tape.mixed + f * kPanel + j * kLanes;
                        store(at, load(at) * shrink);
                    }
                }
                multiply({s.head,
                          width,
                          (count + 1) / 2,
                          {values + first / 2 * s.pitch, 1, s.pitch},
                          plain(tape.weights, kPanel),
                          {first ? tape.mixed : nullptr, kPanel},
                          tape.mixed,
                          kPanel,
                          false,
                          false,
                          true});
            }
            for (int64_t j = 0; j * kLanes < width; ++j) {
                const Float inverse = 1.0f / total[j];
                for (int64_t f = 0; f < s.head; f += 2) {
                    const float* at = tape.mixed + f * kPanel + j * kLanes;
                    store(tape.attended + (h * s.head + f) / 2 * tokens + query + j * kLanes,
                          pairs(load(at) * inverse, load(at + kPanel) * inverse));
                }
            }
        }
    }
}

// out = x W^T + b, the depth of x in pairs.
void apply(const Linear& linear, int64_t length, int64_t inputs, int64_t outputs, Left x, float* out, int64_t out_row,
           bool relu, bool narrow) {
    const int64_t depth = (inputs + 1) / 2;
    multiply({length,
              outputs,
              depth,
              x,
              packed(linear.weight, depth),
              {linear.bias},
              out,
              out_row,
              relu,
              false,
              true,
              narrow});
}

}  // namespace

NarrowTape::NarrowTape(Arena& arena, const Shape& s, int64_t longest) {
    const int64_t tokens = tokens_pitch(longest);
    x = arena.take(longest * s.pitch / 2);
    joint = arena.take(longest * s.joint_pitch / 2);
    queries = arena.take(s.width / 2 * tokens);
    values = arena.take((longest + 1) / 2 * s.pitch);
    scores = arena.take(kKeys * kPanel);
    weights = arena.take(kKeys / 2 * kPanel);
    mixed = arena.take(s.head * kPanel);
    attended = arena.take(s.width / 2 * tokens);
    middle = arena.take(longest * s.pitch / 2);
    hidden = arena.take(longest * s.feed_pitch / 2);
}

void narrow_rows(const Shape& s, int64_t length, const float* from, float* to) {
    for (int64_t i = 0; i < length * s.pitch; i += kLanes)
        store(to + i / 2, narrow(load(from + i), Float{}), kLanes / 2);
}

// x of both tapes to itself.
void layer_forward(const Shape& s, const Segment& segment, const Layer& layer, const Tape& tape, const Scratch& scratch,
                   const NarrowTape& narrow) {
    const int64_t length = segment.length;
    apply(layer.in, length, s.width, 3 * s.width, {narrow.x, s.pitch / 2, 1}, narrow.joint, s.joint_pitch / 2, false,
          true);
    attend(s, length, narrow);
    apply(layer.out, length, s.width, s.width, {narrow.attended, 1, tokens_pitch(length)}, scratch.branch, s.pitch,
          false, false);
    add_norm(s, segment, layer.norm1, tape.x, scratch.branch, nullptr, {tape.middle, nullptr, nullptr, narrow.middle});
    apply(layer.up, length, s.width, s.feed, {narrow.middle, s.pitch / 2, 1}, narrow.hidden, s.feed_pitch / 2, true,
          true);
    apply(layer.down, length, s.feed, s.width, {narrow.hidden, s.feed_pitch / 2, 1}, scratch.branch, s.pitch, false,
          false);
    add_norm(s, segment, layer.norm2, tape.middle, scratch.branch, nullptr, {tape.x, nullptr, nullptr, narrow.x});
}

}  // namespace sopr::SOPR_LEVEL

#endif
