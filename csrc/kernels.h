// Every kernel: its inputs, outputs and memory layout. csrc/cpu and csrc/cuda implement this list.
//
// Arrays are dense and row-major; floats have 32 bits, indices are int32. Every element of an output is overwritten.
// Dimensions: P policies, S subsets, N rows of a subset, U distinct states, K clusters, B problems, G segments,
// T tokens, E width, H heads, F feed-forward, D dimensions. Segment g owns rows offsets[g] : offsets[g + 1].
#pragma once

#include <cstdint>

namespace sopr {

// One dropout site: see philox.h. `rng` points to (seed, step); a null `rng` or probability 0 disables dropout.
// Segment g has number segment_base + g, so a tile of a batch drops the same values as the whole batch.
struct Dropout {
    const int64_t* rng;
    float probability;
    uint32_t level, layer, site;
    int64_t segment_base;
};

// out[g] = mean of the rows of segment g, 0 for an empty segment.
struct SegmentMean {
    const float* x;          // (T, E)
    const int32_t* offsets;  // (G + 1)
    float* out;              // (G, E)
    int64_t segments, width;
};

// grad_x[t] = grad_out[g] / size(g) for the rows t of segment g.
struct SegmentMeanBackward {
    const float* grad_out;   // (G, E)
    const int32_t* offsets;  // (G + 1), offsets[0] = 0 and offsets[G] = T
    float* grad_x;           // (T, E)
    int64_t segments, width;
};

// out = dropout(x), with the mask of philox.h for head 0.
struct SegmentDropout {
    const float* x;          // (T, E)
    const int32_t* offsets;  // (G + 1)
    float* out;              // (T, E)
    int64_t segments, width;
    Dropout dropout;
};

// out = dropout(softmax(scale q k^T)) v in every segment and head; the rows of the softmax are queries.
struct SegmentAttention {
    const float *q, *k, *v;  // (T, H, D)
    const int32_t* offsets;  // (G + 1)
    float* out;              // (T, H, D)
    float* statistics;       // (T, H, 2): per query, the maximum score, on a CPU times log2(e), and 1 / sum of weights
    int64_t segments, heads, dim;
    float scale;
    Dropout dropout;
    int32_t* order;  // (G): the indices of segments, longest first; scratch of a GPU
};

struct SegmentAttentionBackward {
    SegmentAttention forward;         // its outputs are inputs here
    const float* grad_out;            // (T, H, D)
    float *grad_q, *grad_k, *grad_v;  // (T, H, D)
};

// rows[b] = initial centroids by greedy k-means++. They depend only on points[b] and seeds[b]. When distinct points run
// out, it repeats its first row.
struct KMeansInit {
    const float* points;   // (B, N, D)
    const int64_t* seeds;  // (B)
    int32_t* rows;         // (B, K)
    int64_t problems, count, clusters, width;
};

// Lloyd's iterations until labels repeat, centroids move by at most `tolerance` (sum of squares, relative to the mean
// variance of the columns) or `steps` are done. Empty clusters move to the farthest points. `labels` are the nearest
// final centroids, ties to the lowest index; `rows` and `offsets` those of SortByCluster for the labels.
struct KMeans {
    const float* points;  // (B, N, D)
    float* centroids;     // (B, K, D), initial centroids in, final centroids out
    int32_t* labels;      // (B, N)
    int32_t* rows;        // (B, N)
    int32_t* offsets;     // (B, K + 1)
    double* inertia;      // (B)
    int32_t* steps_done;  // (B)
    int64_t problems, count, clusters, width;
    int64_t steps;
    double tolerance;
};

// rows[b, offsets[b, k] : offsets[b, k + 1]] = the rows with label k, ascending.
struct SortByCluster {
    const int32_t* labels;  // (B, N), in [0, K)
    int32_t* rows;          // (B, N)
    int32_t* offsets;       // (B, K + 1)
    int64_t problems, count, clusters;
};

// Transformer encoder layers in every segment of a ragged batch, for P policies over S subsets of shared states.
// Token t of (p, s) is [states[rows[s, t]], columns[p, rows[s, t]]]; segment k of (p, s) is tokens
// offsets[s, k] : offsets[s, k + 1] of that subset, offsets[s, 0] = 0. Segment (p, s, k) has number (p * S + s) * K +
// k.
//
// `parameters` concatenates these tensors, named and laid out as in torch.nn.TransformerEncoderLayer:
//   with project: weight (E, ds + dc), bias (E); without it ds + dc = E
//   per layer:    in_proj_weight (3 E, E), in_proj_bias (3 E), out_proj.weight (E, E), out_proj.bias (E),
//                 norm1.weight (E), norm1.bias (E), linear1.weight (F, E), linear1.bias (F),
//                 linear2.weight (E, F), linear2.bias (E), norm2.weight (E), norm2.bias (E)
struct SegmentEncoder {
    const float* states;      // (U, ds)
    const float* columns;     // (P, U, dc)
    const int32_t* rows;      // (S, N)
    const int32_t* offsets;   // (S, K + 1)
    const int32_t* order;     // (S * K): the indices s * K + k, longest segment first
    const float* parameters;  // see above
    float* out;               // with pool: (P, S, K, E), the mean of each segment; without: (P, S, N, E), the tokens
    float* workspace;         // segment_encoder_workspace() floats; need not be initialised
    int64_t policies, subsets, states_count, state_width, column_width, subset_size, clusters;
    int64_t width, layers, heads, feedforward;
    int64_t longest;  // rows of the longest segment
    Dropout dropout;  // layer and site are 0
    bool project, pool;
    bool bf16;  // operands of the layers' products in bf16, where the device supports it
    // CPU only: activations of the first `kept` policies, which the forward pass leaves to the backward pass,
    // segment_encoder_tape() floats a policy. And adjacent blocks of policies, blocks[b] : blocks[b + 1], whose
    // gradients of parameters stay apart; without them all policies are one.
    float* tape = nullptr;
    int64_t kept = 0;
    const int32_t* blocks = nullptr;  // (block_count + 1)
    int64_t block_count = 1;
    // GPU only: the most tiles of 128 rows that longer segments of a subset fill, each of them whole tiles; -1:
    // unknown.
    int64_t long_tiles = -1;
};

// Recomputes the forward pass where no tape holds it; does not write forward.out.
struct SegmentEncoderBackward {
    SegmentEncoder forward;
    const float* grad_out;   // shaped like forward.out
    float* grad_parameters;  // (block_count, size of forward.parameters)
    float* grad_columns;     // shaped like forward.columns; may be null
};

// C perceptrons of one architecture: linear layers, and ReLU or tanh after all but the last. Row c of `parameters`
// concatenates weight (out, in) and bias (out) of every layer.
struct Mlp {
    const float* x;        // (C, B, sizes[0]); if shared, (B, sizes[0])
    float* parameters;     // (C, Z); mlp_step updates them
    const int64_t* sizes;  // (layers + 1): widths of input, hidden layers and output
    float* out;            // (C, B, sizes[layers]); of mlp only
    int64_t members, batch, layers;
    bool shared, tanh;
};

// Recomputes the forward pass.
struct MlpBackward {
    Mlp forward;
    const float* grad_out;   // (C, B, sizes[layers])
    float* grad_x;           // (C, B, sizes[0]); may be null
    float* grad_parameters;  // (C, Z); may be null
};

// The last count * length rows of a batch: steps of runs, all runs of a step side by side. Later steps read states that
// the perceptron reached itself: state + scale * output, within the bound. Their targets are less by what the state
// that they read is ahead of that in x, in units of the scale.
struct Runs {
    const float* scale;  // (states): how far the first outputs move the first inputs
    int64_t count, length, states;
    float bound;
};

// One step of AdamW, the step-th. losses[c] = sum of weight * loss(out, target) / B. The loss of column j is Huber's
// with thresholds[j], half the square below it; without thresholds the logistic loss of logits.
struct MlpStep {
    Mlp forward;
    const float *target, *weight;  // (C, B, sizes[layers]); weight may be null, which is 1
    const float* thresholds;       // (sizes[layers]) or null
    float* losses;                 // (C)
    float *means, *squares;        // (C, Z) moments of the gradients
    float* average;                // (C, Z) or null: moves by average_rate of the way to the new parameters
    int64_t step;
    double rate, beta1, beta2, decay;
    float average_rate;
    Runs runs;
};

// Reads consecutive tensors of SegmentEncoder's `parameters`.
struct ParameterReader {
    const float* position;
    const float* next(int64_t floats) {
        position += floats;
        return position - floats;
    }
};

}  // namespace sopr
