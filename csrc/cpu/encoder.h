// segment_encoder on the CPU. A segment's tokens stay in one worker's cache from its raw rows to its mean: the layers'
// products are those of product.h, between them lie passes over rows (encoder_rows.cpp) and attention.
//
// Rows of activations are padded with zeros to whole vectors ("pitch"). Attention has its queries in the lanes of
// vectors: so what it reads as B and what it writes is transposed, (features, tokens), and its softmax needs no sum
// across lanes. log2(e) / sqrt(head width) is folded into the packed weights of the queries: scores are exponents of 2.
#pragma once

#include "cpu/attention_tile.h"
#include "cpu/draws.h"
#include "cpu/encoder_operands.h"
#include "cpu/sum_rows.h"
#include "kernels.h"

namespace sopr::SOPR_LEVEL {

struct Shape {
    int64_t inputs, width, heads, head, feed;
    int64_t inputs_pitch, pitch, joint_pitch, feed_pitch;  // of ds + dc, E, 3 E (queries, keys, values), F
    explicit Shape(const SegmentEncoder&);
};

// Hands out pieces of a workspace; without a base it only counts.
struct Arena {
    float* base;
    int64_t used = 0;
    template <class T = float>
    T* take(int64_t count) {
        T* piece = base ? reinterpret_cast<T*>(base + used) : nullptr;
        // 16 more, so that reading a whole vector from the last value stays inside.
        used += round_up(count * int64_t(sizeof(T)), 64) / int64_t(sizeof(float)) + 16;
        return piece;
    }
};

struct Linear {
    float *weight, *bias;  // packed (inputs, outputs), in bf16 pairs if asked for; (outputs)
    float* back;           // packed (outputs, inputs), for the gradient of the inputs
};
struct Norm {
    float *weight, *bias;
};
struct Layer {
    Linear in, out, up, down;
    Norm norm1, norm2;
};
// The packed parameters: those of every layer lie equally far apart.
struct Weights {
    Weights(Arena&, const SegmentEncoder&, bool backward, bool bf16);
    void fill(const SegmentEncoder&) const;
    Layer layer(int64_t) const;
    Linear project;

  private:
    Shape shape;
    bool backward, bf16;
    int64_t columns_begin;
    float *scaled, *layers;
    int64_t layer_size;
};

// Gradients of the parameters, rows padded, as torch has them but for `out`, whose weight is transposed.
struct LayerGradient {
    float *in, *in_bias, *out, *out_bias, *norm1, *norm1_bias, *up, *up_bias, *down, *down_bias, *norm2, *norm2_bias;
};
struct Gradient {
    Gradient(Arena&, const SegmentEncoder&);
    LayerGradient layer(int64_t) const;
    float *project, *project_bias;
    float* base;
    int64_t size;

  private:
    Shape shape;
    float* layers;
    int64_t layer_size;
};
// parameters[...] = sum of `count` gradients, `stride` floats apart, in that order.
void add_up(const SegmentEncoder&, const Gradient& first, int64_t count, int64_t stride, float* parameters,
            int threads);

// What a layer computes for one segment; backward reads all of it.
struct Tape {
    Tape(Arena&, const Shape&, int64_t longest, bool backward);
    float* x;                // (L, pitch) the layer's input
    float* joint;            // (L, joint_pitch)
    float* attended;         // (E, tokens_pitch)
    float* statistics;       // (H, 2, tokens_pitch) the softmax's maximum and inverse sum
    float *hat1, *inverse1;  // (L, pitch), (L): normalised values and inverse standard deviations, backward only
    float* middle;           // (L, pitch) after the first norm
    float* hidden;           // (L, feed_pitch) inside the feed-forward, after dropout
    float *hat2, *inverse2;
    uint16_t *draws1, *draws2;  // (L, draws_row(E)) after attention, after the feed-forward
};

// What a worker needs beside the tapes, for one segment at a time.
struct Scratch {
    Scratch(Arena&, const Shape&, int64_t longest, bool backward, bool bf16);
    float* inputs;    // (L, inputs_pitch)
    float* branch;    // (L, pitch) what is added to the residual
    float* queries;   // (E, tokens_pitch)
    float* scores;    // (kKeys, kPanel)
    uint16_t* draws;  // (L, draws_row(F))
    float *grad, *grad_hidden, *grad_joint, *grad_attended, *grad_attended_t;  // backward only
    float *grad_scores, *grad_queries;

    Operands operands;
    struct {  // what they need, for bf16 only
        float *left, *right, *keys, *queries, *values, *grad, *query_rows, *key_rows;
        float* tile[3];
    } buffers;
};

// One segment.
struct Segment {
    int64_t length;
    Drops drops;  // of layer, site and head 0
    Drops at(uint32_t layer, uint32_t site, uint32_t head = 0) const {
        Drops d = drops;
        d.place |= philox_place(0, layer, site, head);
        return d;
    }
};

// encoder_rows.cpp: passes over the rows of a segment. Null draws: no dropout.
void add_norm(const Shape&, const Segment&, const Norm&, const float* residual, float* branch, const uint16_t* draws,
              float* out, float* hat, float* inverse);
void norm_backward(const Shape&, int64_t length, const Norm&, float* hat, const float* inverse, float* grad,
                   float* grad_weight, float* grad_bias);
void drop_rows(const Segment&, int64_t columns, int64_t pitch, const float* from, const uint16_t* draws, float* to);
void gate_rows(int64_t length, int64_t pitch, const float* gate, float scale, float* grad);

// encoder_attention.cpp
void attend(const Shape&, const Segment&, uint32_t layer, const Tape&, const Scratch&);
void attend_backward(const Shape&, const Segment&, uint32_t layer, const Tape&, const Scratch&);

// encoder_layer.cpp: x of `tape` to `out`; the gradient of `out`, in scratch.grad, to that of x.
void layer_forward(const Shape&, const Segment&, uint32_t index, const Layer&, const Tape&, const Scratch&, float* out);
void layer_backward(const Shape&, const Segment&, uint32_t index, const Layer&, const Tape&, const Scratch&,
                    const LayerGradient&);

}  // namespace sopr::SOPR_LEVEL
