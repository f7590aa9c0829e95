// segment_encoder on the CPU. One worker encodes a segment from raw rows to mean, so activations stay in its cache: a
// layer is products (product.h), passes over rows (segment_encoder_rows.cpp) and attention.
//
// Rows of activations are padded with zeros to whole vectors; `pitch` is their distance. Attention holds queries in
// vector lanes, so its right operand and its output are transposed, (features, tokens), and its softmax needs no sum
// across lanes. The packed query weights include log2(e) / sqrt(head width), so scores are exponents of 2.
#pragma once

#include "cpu/arena.h"
#include "cpu/dropout_draws.h"
#include "cpu/segment_encoder_operands.h"
#include "cpu/softmax_tile.h"
#include "cpu/sum_rows.h"
#include "kernels.h"

namespace sopr::SOPR_LEVEL {

struct Shape {
    int64_t inputs, width, heads, head_width, feed;
    int64_t inputs_pitch, pitch, qkv_pitch, feed_pitch;  // of rows of ds + dc, E, 3 E and F values
    explicit Shape(const SegmentEncoder&);
};

struct PackedLinear {
    float* weight;     // packed (inputs, outputs), as bf16 pairs with bf16
    float* bias;       // (outputs)
    float* transpose;  // packed (outputs, inputs), for the gradient of the inputs; backward only
};
struct Norm {
    float *weight, *bias;
};
struct PackedLayer {
    PackedLinear in, out, up, down;
    Norm norm1, norm2;
};
// Parameters packed for product.h.
struct PackedWeights {
    PackedWeights(Arena&, const SegmentEncoder&, bool backward, bool bf16);
    void fill(const SegmentEncoder&) const;
    PackedLayer layer(int64_t) const;
    PackedLinear project;

  private:
    Shape shape;
    bool backward, bf16;
    int64_t columns_begin;
    float* scaled;  // in_proj_weight and in_proj_bias with scaled queries
    float* layers;  // layer_size floats each
    int64_t layer_size;
};

// Gradients of the parameters with padded rows, laid out as in torch except that `out` is transposed.
struct LayerGradient {
    float *in, *in_bias, *out, *out_bias, *norm1, *norm1_bias, *up, *up_bias, *down, *down_bias, *norm2, *norm2_bias;
};
struct Gradient {
    Gradient(Arena&, const SegmentEncoder&);
    LayerGradient layer(int64_t) const;
    float *project, *project_bias;
    float* base;   // all of them
    int64_t size;  // floats

  private:
    Shape shape;
    float* layers;
    int64_t layer_size;
};
// Writes a gradient, whose partial gradients have been added up, in the layout of `parameters`.
void write_gradient(const SegmentEncoder&, const Gradient&, float* parameters);

// Activations of one layer for one segment, which backward reads. It computes those again that take one pass over rows,
// which costs less than memory.
struct Tape {
    Tape(Arena&, const Shape&, int64_t longest, bool backward);
    float* qkv;              // (L, qkv_pitch)
    float* attended;         // (E, tokens_pitch)
    float* statistics;       // (H, 2, tokens_pitch), maximum and inverse sum of each softmax
    float *hat1, *inverse1;  // (L, pitch), (L): normalised values, 1 / standard deviation; backward only
    float* hidden;           // (L, feed_pitch), inside the feed-forward, after dropout
    float *hat2, *inverse2;
};

// Scratch buffers of a worker, reused for every segment.
struct Scratch {
    Scratch(Arena&, const Shape&, int64_t longest, bool backward, bool bf16);
    float* inputs;    // (L, inputs_pitch)
    float* x;         // (L, pitch), input of a layer
    float* branch;    // (L, pitch), added to the residual; then the result of the first norm
    float* queries;   // (E, tokens_pitch)
    float* scores;    // (kKeys, kPanel)
    uint16_t* draws;  // (L, draws_pitch(E) or draws_pitch(F)), of one site of dropout
    float *grad, *grad_hidden, *grad_qkv, *grad_attended, *grad_attended_t;  // backward only
    float *grad_scores, *grad_queries;

    Operands operands;
    struct {  // of `operands`, bf16 only
        float *left, *right, *keys, *queries, *values, *grad, *query_rows, *key_rows;
        float* tile[3];
    } buffers;
};

struct Segment {
    int64_t length;
    DropoutSite dropout;  // of layer, site and head 0
    DropoutSite dropout_at(uint32_t layer, uint32_t site, uint32_t head = 0) const {
        DropoutSite result = dropout;
        result.place |= philox_place(0, layer, site, head);
        return result;
    }
};

// segment_encoder_rows.cpp: passes over the rows of a segment. Null draws disable dropout.
void add_norm(const Shape&, const Segment&, const Norm&, const float* residual, const uint16_t* draws, float* x,
              float* hat, float* inverse);
void scale_rows(const Shape&, int64_t length, const Norm&, const float* hat, float* out);
void norm_backward(const Shape&, int64_t length, const Norm&, float* hat, const float* inverse, float* grad,
                   float* grad_weight, float* grad_bias);
void drop_rows(const Segment&, int64_t columns, int64_t pitch, const float* from, const uint16_t* draws, float* to);
void relu_backward(int64_t length, int64_t pitch, const float* out, float scale, float* grad);

// segment_encoder_attention.cpp
void attend(const Shape&, const Segment&, uint32_t layer, const Tape&, const Scratch&);
void attend_backward(const Shape&, const Segment&, uint32_t layer, const Tape&, const Scratch&);

// segment_encoder_layer.cpp: forward turns the rows in scratch.x into the layer's output; backward, with the input in
// scratch.x, turns the gradient of the output in scratch.grad into that of the input.
void layer_forward(const Shape&, const Segment&, uint32_t index, const PackedLayer&, const Tape&, const Scratch&);
void layer_backward(const Shape&, const Segment&, uint32_t index, const PackedLayer&, const Tape&, const Scratch&,
                    const LayerGradient&);

}  // namespace sopr::SOPR_LEVEL
