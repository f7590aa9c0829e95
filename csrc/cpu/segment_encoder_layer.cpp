#include "cpu/segment_encoder.h"

namespace sopr::SOPR_LEVEL {
namespace {

// out = x W^T + b
void apply(const Scratch& scratch, const PackedLinear& l, int64_t length, int64_t inputs, int64_t outputs, Left x,
           float* out, int64_t pitch, bool relu = false) {
    const Operands& o = scratch.operands;
    multiply({length, outputs, o.depth(inputs), x, packed(l.weight, inputs, o.pairs), {l.bias}, out, pitch, relu});
}
void apply(const Scratch& scratch, const PackedLinear& l, int64_t length, int64_t inputs, int64_t outputs,
           const float* x, int64_t x_pitch, float* out, int64_t pitch, bool relu = false) {
    const Left left = scratch.operands.by_columns(x, length, inputs, x_pitch, scratch.buffers.left);
    apply(scratch, l, length, inputs, outputs, left, out, pitch, relu);
}

// grad_x = grad W, added to grad_x if `add`
void apply_transpose(const Scratch& scratch, const PackedLinear& l, int64_t length, int64_t inputs, int64_t outputs,
                     const float* grad, int64_t grad_pitch, float* grad_x, int64_t pitch, bool add) {
    const Operands& o = scratch.operands;
    multiply({length,
              inputs,
              o.depth(outputs),
              o.by_columns(grad, length, outputs, grad_pitch, scratch.buffers.left),
              packed(l.transpose, outputs, o.pairs),
              {add ? grad_x : nullptr, pitch},
              grad_x,
              pitch});
}

// grad_weight += grad^T x, (outputs, inputs)
void add_outer(const Scratch& scratch, int64_t length, int64_t inputs, int64_t outputs, Left grad_t, const float* x,
               int64_t pitch, float* grad_weight) {
    const Operands& o = scratch.operands;
    multiply({outputs,
              inputs,
              o.depth(length),
              grad_t,
              o.right(x, length, inputs, pitch, scratch.buffers.right),
              {grad_weight, pitch},
              grad_weight,
              pitch});
}
void add_outer(const Scratch& scratch, int64_t length, int64_t inputs, int64_t outputs, const float* grad,
               int64_t grad_pitch, const float* x, int64_t pitch, float* grad_weight) {
    const Left left = scratch.operands.by_rows(grad, length, outputs, grad_pitch, scratch.buffers.left);
    add_outer(scratch, length, inputs, outputs, left, x, pitch, grad_weight);
}

// The draws of a site of the layer, null without dropout.
const uint16_t* draw(const Segment& segment, uint32_t layer, uint32_t site, int64_t columns, const Scratch& scratch) {
    if (!segment.dropout.threshold) return nullptr;
    draw_rows(segment.dropout_at(layer, site), segment.length, columns, scratch.draws);
    return scratch.draws;
}

}  // namespace

void layer_forward(const Shape& s, const Segment& segment, uint32_t index, const PackedLayer& layer, const Tape& tape,
                   const Scratch& scratch) {
    const int64_t length = segment.length;
    float *x = scratch.x, *branch = scratch.branch;
    apply(scratch, layer.in, length, s.width, 3 * s.width, x, s.pitch, tape.qkv, s.qkv_pitch);
    attend(s, segment, index, tape, scratch);
    apply(scratch, layer.out, length, s.width, s.width,
          scratch.operands.by_rows(tape.attended, s.width, length, tokens_pitch(length), scratch.buffers.left), branch,
          s.pitch);
    add_norm(s, segment, layer.norm1, x, draw(segment, index, kAfterAttention, s.width, scratch), branch, tape.hat1,
             tape.inverse1);

    apply(scratch, layer.up, length, s.width, s.feed, branch, s.pitch, tape.hidden, s.feed_pitch, true);
    if (const uint16_t* draws = draw(segment, index, kInsideFeedForward, s.feed, scratch))
        drop_rows(segment, s.feed, s.feed_pitch, tape.hidden, draws, tape.hidden);
    apply(scratch, layer.down, length, s.feed, s.width, tape.hidden, s.feed_pitch, x, s.pitch);
    add_norm(s, segment, layer.norm2, branch, draw(segment, index, kAfterFeedForward, s.width, scratch), x, tape.hat2,
             tape.inverse2);
}

void layer_backward(const Shape& s, const Segment& segment, uint32_t index, const PackedLayer& layer, const Tape& tape,
                    const Scratch& scratch, const LayerGradient& to) {
    const int64_t length = segment.length;
    float *grad = scratch.grad, *branch = scratch.branch;

    norm_backward(s, length, layer.norm2, tape.hat2, tape.inverse2, grad, to.norm2, to.norm2_bias);
    if (const uint16_t* draws = draw(segment, index, kAfterFeedForward, s.width, scratch))
        drop_rows(segment, s.width, s.pitch, grad, draws, branch);
    else
        branch = grad;
    add_rows(length, s.pitch, s.pitch, branch, to.down_bias);
    add_outer(scratch, length, s.feed, s.width, branch, s.pitch, tape.hidden, s.feed_pitch, to.down);
    apply_transpose(scratch, layer.down, length, s.feed, s.width, branch, s.pitch, scratch.grad_hidden, s.feed_pitch,
                    false);
    relu_backward(length, s.feed_pitch, tape.hidden, segment.dropout.scale, scratch.grad_hidden);
    add_rows(length, s.feed_pitch, s.feed_pitch, scratch.grad_hidden, to.up_bias);
    scale_rows(s, length, layer.norm1, tape.hat1, scratch.branch);
    add_outer(scratch, length, s.width, s.feed, scratch.grad_hidden, s.feed_pitch, scratch.branch, s.pitch, to.up);
    apply_transpose(scratch, layer.up, length, s.width, s.feed, scratch.grad_hidden, s.feed_pitch, grad, s.pitch, true);

    norm_backward(s, length, layer.norm1, tape.hat1, tape.inverse1, grad, to.norm1, to.norm1_bias);
    if (const uint16_t* draws = draw(segment, index, kAfterAttention, s.width, scratch))
        drop_rows(segment, s.width, s.pitch, grad, draws, branch);
    add_rows(length, s.pitch, s.pitch, branch, to.out_bias);
    add_outer(scratch, length, s.width, s.width,
              scratch.operands.by_columns(tape.attended, s.width, length, tokens_pitch(length), scratch.buffers.left),
              branch, s.pitch, to.out);
    apply_transpose(scratch, layer.out, length, s.width, s.width, branch, s.pitch, scratch.grad_attended, s.pitch,
                    false);
    attend_backward(s, segment, index, tape, scratch);
    add_rows(length, s.qkv_pitch, s.qkv_pitch, scratch.grad_qkv, to.in_bias);
    add_outer(scratch, length, s.width, 3 * s.width, scratch.grad_qkv, s.qkv_pitch, scratch.x, s.pitch, to.in);
    apply_transpose(scratch, layer.in, length, s.width, 3 * s.width, scratch.grad_qkv, s.qkv_pitch, grad, s.pitch,
                    true);
}

}  // namespace sopr::SOPR_LEVEL
