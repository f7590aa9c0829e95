// Attention inside segments, by that of segment_encoder: one task owns a head of a segment.
#include "cpu/kernel_table.h"
#include "cpu/pool.h"
#include "cpu/segment_encoder.h"

namespace sopr::SOPR_LEVEL {
namespace {

// One head of a segment, as the only head of an encoder.
struct Head {
    const SegmentAttention& p;
    const Shape& shape;
    Tape tape;
    Scratch scratch;
    int64_t segment, head, begin;
    Segment tokens;

    Head(const SegmentAttention& p, const Shape& shape, Arena& arena, int64_t longest, bool backward, int64_t item)
        : p(p),
          shape(shape),
          tape(arena, shape, longest, false),
          scratch(arena, shape, longest, backward, false),
          segment(p.order[item / p.heads]),
          head(item % p.heads),
          begin(p.offsets[segment]),
          tokens{p.offsets[segment + 1] - begin, DropoutSite(p.dropout, segment, head)} {}

    int64_t stride() const { return p.heads * p.dim; }
    int64_t index(int64_t row) const { return (begin + row) * stride() + head * p.dim; }
    // rows (L, pitch) = factor * those of x (T, H, D), and back.
    void take(const float* x, float factor, float* rows, int64_t pitch) const {
        for (int64_t t = 0; t < tokens.length; ++t)
            for (int64_t c = 0; c < p.dim; ++c) rows[t * pitch + c] = factor * x[index(t) + c];
    }
    void give(const float* rows, float factor, float* x, int64_t pitch) const {
        for (int64_t t = 0; t < tokens.length; ++t)
            for (int64_t c = 0; c < p.dim; ++c) x[index(t) + c] = factor * rows[t * pitch + c];
    }
    void take_qkv() const {
        take(p.q, p.scale * kLog2E, tape.qkv, shape.qkv_pitch);
        take(p.k, 1.0f, tape.qkv + p.dim, shape.qkv_pitch);
        take(p.v, 1.0f, tape.qkv + 2 * p.dim, shape.qkv_pitch);
    }
    // Calls body(one in `statistics`, the same in the tape).
    template <class Body>
    void for_statistics(const Body& body) const {
        for (int64_t t = 0; t < tokens.length; ++t)
            for (int64_t i = 0; i < 2; ++i)
                body(p.statistics[((begin + t) * p.heads + head) * 2 + i],
                     tape.statistics[i * tokens_pitch(tokens.length) + t]);
    }
};

template <class Body>
void for_heads(const SegmentAttention& p, bool backward, int threads, const Body& body) {
    SegmentEncoder encoder{};
    encoder.width = p.dim;
    encoder.heads = 1;
    const Shape shape(encoder);
    const int64_t longest = p.segments ? p.offsets[p.order[0] + 1] - p.offsets[p.order[0]] : 0;
    Arena measure;
    Tape(measure, shape, longest, false);
    Scratch(measure, shape, longest, backward, false);
    const WorkerMemory memory(measure.bytes(), threads);
    parallel_for(p.segments * p.heads, threads, [&](int64_t item, int worker) {
        Arena arena = memory.arena(worker);
        body(Head(p, shape, arena, longest, backward, item));
    });
}

}  // namespace

void segment_attention(const SegmentAttention& p, int threads) {
    for_heads(p, false, threads, [&](const Head& h) {
        h.take_qkv();
        attend(h.shape, h.tokens, 0, h.tape, h.scratch);
        const int64_t length = h.tokens.length;
        transpose(h.tape.attended, tokens_pitch(length), p.dim, length, p.out + h.index(0), h.stride(), false);
        h.for_statistics([](float& to, float from) { to = from; });
    });
}

void segment_attention_backward(const SegmentAttentionBackward& b, int threads) {
    const SegmentAttention& p = b.forward;
    for_heads(p, true, threads, [&](const Head& h) {
        const Shape& s = h.shape;
        const int64_t length = h.tokens.length;
        h.take_qkv();
        h.take(p.out, 1.0f, h.scratch.branch, s.pitch);
        transpose(h.scratch.branch, s.pitch, length, p.dim, h.tape.attended, tokens_pitch(length), true);
        h.take(b.grad_out, 1.0f, h.scratch.grad_attended, s.pitch);
        h.for_statistics([](float from, float& to) { to = from; });
        attend_backward(s, h.tokens, 0, h.tape, h.scratch);
        h.give(h.scratch.grad_qkv, p.scale * kLog2E, b.grad_q, s.qkv_pitch);
        h.give(h.scratch.grad_qkv + p.dim, 1.0f, b.grad_k, s.qkv_pitch);
        h.give(h.scratch.grad_qkv + 2 * p.dim, 1.0f, b.grad_v, s.qkv_pitch);
    });
}

}  // namespace sopr::SOPR_LEVEL
