#include "cpu/segment_encoder.h"

namespace sopr::SOPR_LEVEL {
namespace {

float query_scale(const Shape& s) { return kLog2E / __builtin_sqrtf(float(s.head_width)); }

// The weight is (inputs, outputs) in panels, the bias one padded row.
PackedLinear take_linear(Arena& arena, int64_t inputs, int64_t outputs, bool backward) {
    PackedLinear l;
    l.weight = arena.take(packed_size(inputs, outputs));
    l.bias = arena.take(round_up(outputs, kLanes));
    l.transpose = backward ? arena.take(packed_size(outputs, inputs)) : nullptr;
    return l;
}

Norm take_norm(Arena& arena, int64_t pitch) {
    float* weight = arena.take(pitch);
    return {weight, arena.take(pitch)};
}

PackedLayer take_layer(Arena& arena, const Shape& s, bool backward) {
    PackedLayer l;
    l.in = take_linear(arena, s.width, 3 * s.width, backward);
    l.out = take_linear(arena, s.width, s.width, backward);
    l.up = take_linear(arena, s.width, s.feed, backward);
    l.down = take_linear(arena, s.feed, s.width, backward);
    l.norm1 = take_norm(arena, s.pitch);
    l.norm2 = take_norm(arena, s.pitch);
    return l;
}

LayerGradient take_gradient(Arena& arena, const Shape& s) {
    LayerGradient g;
    g.in = arena.take(3 * s.width * s.pitch);
    g.in_bias = arena.take(s.qkv_pitch);
    g.out = arena.take(s.width * s.pitch);
    g.out_bias = arena.take(s.pitch);
    g.norm1 = arena.take(s.pitch);
    g.norm1_bias = arena.take(s.pitch);
    g.up = arena.take(s.feed * s.pitch);
    g.up_bias = arena.take(s.feed_pitch);
    g.down = arena.take(s.width * s.feed_pitch);
    g.down_bias = arena.take(s.pitch);
    g.norm2 = arena.take(s.pitch);
    g.norm2_bias = arena.take(s.pitch);
    return g;
}

void copy_row(const float* from, int64_t count, float* to) {
    for (int64_t i = 0; i < round_up(count, kLanes); ++i) to[i] = i < count ? from[i] : 0.0f;
}

void fill_linear(ParameterReader& reader, const PackedLinear& l, int64_t inputs, int64_t outputs, bool bf16) {
    const float* weight = reader.next(outputs * inputs);
    pack(weight, 1, inputs, inputs, outputs, bf16, l.weight);
    if (l.transpose) pack(weight, inputs, 1, outputs, inputs, bf16, l.transpose);
    copy_row(reader.next(outputs), outputs, l.bias);
}

void fill_norm(ParameterReader& reader, const Norm& n, int64_t width) {
    copy_row(reader.next(width), width, n.weight);
    copy_row(reader.next(width), width, n.bias);
}

// Appends tensors to the flat gradient, without the padding of their rows.
struct GradientWriter {
    float* position;
    void put(const float* from, int64_t rows, int64_t columns, int64_t pitch) {
        for (int64_t r = 0; r < rows; ++r, position += columns)
            std::memcpy(position, from + r * pitch, columns * sizeof(float));
    }
};

}  // namespace

Shape::Shape(const SegmentEncoder& p)
    : inputs(p.state_width + p.column_width),
      width(p.width),
      heads(p.heads),
      head_width(p.width / p.heads),
      feed(p.feedforward),
      inputs_pitch(round_up(inputs, kLanes)),
      pitch(round_up(p.width, kLanes)),
      qkv_pitch(round_up(3 * p.width, kLanes)),
      feed_pitch(round_up(p.feedforward, kLanes)) {}

PackedWeights::PackedWeights(Arena& arena, const SegmentEncoder& p, bool backward, bool bf16)
    : shape(p), backward(backward), bf16(bf16), columns_begin(p.state_width) {
    project = {};
    if (p.project) {
        project = take_linear(arena, shape.inputs, shape.width, false);
        if (backward) project.transpose = arena.take(packed_size(shape.width, p.column_width));
    }
    scaled = arena.take(3 * shape.width * (shape.width + 1));
    Arena measure;
    take_layer(measure, shape, backward);
    layer_size = measure.floats();
    layers = arena.take(p.layers * layer_size);
}

PackedLayer PackedWeights::layer(int64_t index) const {
    Arena arena(layers + index * layer_size);
    return take_layer(arena, shape, backward);
}

void PackedWeights::fill(const SegmentEncoder& p) const {
    const int64_t width = shape.width;
    ParameterReader reader{p.parameters};
    if (p.project) {
        if (backward)
            pack(reader.position + columns_begin, shape.inputs, 1, width, p.column_width, false, project.transpose);
        PackedLinear forward = project;
        forward.transpose = nullptr;
        fill_linear(reader, forward, shape.inputs, width, false);
    }
    for (int64_t i = 0; i < p.layers; ++i) {
        const PackedLayer l = layer(i);
        std::memcpy(scaled, reader.next(3 * width * (width + 1)), 3 * width * (width + 1) * sizeof(float));
        for (int64_t j = 0; j < width * width; ++j) scaled[j] *= query_scale(shape);
        for (int64_t j = 0; j < width; ++j) scaled[3 * width * width + j] *= query_scale(shape);
        ParameterReader in{scaled};
        fill_linear(in, l.in, width, 3 * width, bf16);
        fill_linear(reader, l.out, width, width, bf16);
        fill_norm(reader, l.norm1, width);
        fill_linear(reader, l.up, width, shape.feed, bf16);
        fill_linear(reader, l.down, shape.feed, width, bf16);
        fill_norm(reader, l.norm2, width);
    }
}

Gradient::Gradient(Arena& arena, const SegmentEncoder& p) : shape(p) {
    base = reinterpret_cast<float*>(arena.next());
    const int64_t before = arena.floats();
    project = p.project ? arena.take(shape.width * shape.inputs_pitch) : nullptr;
    project_bias = p.project ? arena.take(shape.pitch) : nullptr;
    Arena measure;
    take_gradient(measure, shape);
    layer_size = measure.floats();
    layers = arena.take(p.layers * layer_size);
    size = arena.floats() - before;
}

LayerGradient Gradient::layer(int64_t index) const {
    Arena arena(layers + index * layer_size);
    return take_gradient(arena, shape);
}

void write_gradient(const SegmentEncoder& p, const Gradient& gradient, float* parameters) {
    const Shape s(p);
    const float scale = query_scale(s);
    GradientWriter writer{parameters};
    if (p.project) {
        writer.put(gradient.project, s.width, s.inputs, s.inputs_pitch);
        writer.put(gradient.project_bias, 1, s.width, s.pitch);
    }
    for (int64_t i = 0; i < p.layers; ++i) {
        const LayerGradient g = gradient.layer(i);
        for (int64_t j = 0; j < s.width * s.pitch; ++j) g.in[j] *= scale;
        for (int64_t j = 0; j < s.width; ++j) g.in_bias[j] *= scale;
        writer.put(g.in, 3 * s.width, s.width, s.pitch);
        writer.put(g.in_bias, 1, 3 * s.width, s.qkv_pitch);
        for (int64_t r = 0; r < s.width; ++r)
            for (int64_t c = 0; c < s.width; ++c) *writer.position++ = g.out[c * s.pitch + r];
        writer.put(g.out_bias, 1, s.width, s.pitch);
        writer.put(g.norm1, 1, s.width, s.pitch);
        writer.put(g.norm1_bias, 1, s.width, s.pitch);
        writer.put(g.up, s.feed, s.width, s.pitch);
        writer.put(g.up_bias, 1, s.feed, s.feed_pitch);
        writer.put(g.down, s.width, s.feed, s.feed_pitch);
        writer.put(g.down_bias, 1, s.width, s.pitch);
        writer.put(g.norm2, 1, s.width, s.pitch);
        writer.put(g.norm2_bias, 1, s.width, s.pitch);
    }
}

Tape::Tape(Arena& arena, const Shape& s, int64_t longest, bool backward) {
    const int64_t tokens = tokens_pitch(longest);
    qkv = arena.take(longest * s.qkv_pitch);
    attended = arena.take(s.width * tokens);
    statistics = arena.take(s.heads * 2 * tokens);
    hidden = arena.take(longest * s.feed_pitch);
    hat1 = backward ? arena.take(longest * s.pitch) : nullptr;
    hat2 = backward ? arena.take(longest * s.pitch) : nullptr;
    inverse1 = backward ? arena.take(longest) : nullptr;
    inverse2 = backward ? arena.take(longest) : nullptr;
}

Scratch::Scratch(Arena& arena, const Shape& s, int64_t longest, bool backward, bool bf16) : operands{bf16}, buffers{} {
    const int64_t tokens = tokens_pitch(longest);
    inputs = arena.take(longest * s.inputs_pitch);
    x = arena.take(longest * s.pitch);
    branch = arena.take(longest * s.pitch);
    queries = arena.take(s.width * tokens);
    scores = arena.take(kKeys * kPanel);
    draws = arena.take<uint16_t>(longest * draws_pitch(max(s.width, s.feed)));
    if (bf16) {
        const int64_t rows = pairs_size(longest, max(3 * s.width, s.feed)), columns = pairs_size(s.width, tokens);
        for (float** buffer : {&buffers.left, &buffers.right, &buffers.keys, &buffers.queries, &buffers.values,
                               &buffers.grad, &buffers.query_rows, &buffers.key_rows})
            *buffer = arena.take(max(rows, columns));
        for (float*& tile : buffers.tile) tile = arena.take(pairs_size(kKeys, kPanel));
    }
    if (!backward) return;
    grad = arena.take(longest * s.pitch);
    grad_hidden = arena.take(longest * s.feed_pitch);
    grad_qkv = arena.take(longest * s.qkv_pitch);
    grad_attended = arena.take(longest * s.pitch);
    grad_attended_t = arena.take(s.width * tokens);
    grad_scores = arena.take(kKeys * kPanel);
    grad_queries = arena.take(s.head_width * kPanel);
}

}  // namespace sopr::SOPR_LEVEL
