// Every kernel: what it reads, what it writes, how it lies in memory. csrc/cpu and csrc/cuda implement this list.
//
// All arrays are dense and row-major; floats are 32 bits, indices int32. Outputs are overwritten whole.
// Letters: P policies, S subsets, N rows of a subset, U distinct states, K clusters, B problems, G segments,
// T tokens, E width, H heads, F feed-forward, D dimensions. Segment g owns rows offsets[g] : offsets[g + 1].
#pragma once

#include <cstdint>

namespace sopr {

// Which random numbers a site draws: see philox.h. `rng` points to (seed, step); null or probability 0: no dropout.
// Segment g draws as number segment_base + g, so that a tile of a batch draws what the whole would.
struct Dropout {
    const int64_t* rng;
    float probability;
    uint32_t level, layer, site;
    int64_t segment_base;
};

// out[g] = mean over the rows of segment g, 0 if it has none.
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

// out = x, where segment g's row r and column c are dropped as philox.h says, head 0.
struct SegmentDropout {
    const float* x;          // (T, E)
    const int32_t* offsets;  // (G + 1)
    float* out;              // (T, E)
    int64_t segments, width;
    Dropout dropout;
};

// Inside every segment and head, out = dropout(softmax(scale q k^T)) v; rows of the weights are queries.
struct SegmentAttention {
    const float *q, *k, *v;  // (T, H, D)
    const int32_t* offsets;  // (G + 1)
    float* out;              // (T, H, D)
    float* statistics;       // (T, H, 2): of each query the greatest score and 1 / the sum of exponentials below it
    int64_t segments, heads, dim;
    float scale;
    Dropout dropout;
};

struct SegmentAttentionBackward {
    SegmentAttention forward;         // with its outputs, as inputs
    const float* grad_out;            // (T, H, D)
    float *grad_q, *grad_k, *grad_v;  // (T, H, D)
};

// labels[b, n] = the nearest of problem b's centroids, the first of several; distances[b, n] = its squared distance.
struct KMeansAssign {
    const float* points;     // (B, N, D)
    const float* centroids;  // (B, K, D)
    int32_t* labels;         // (B, N)
    float* distances;        // (B, N)
    int64_t problems, count, clusters, width;
};

// rows[b] = the points to start from, a function of points[b], seeds[b] and restart alone (draws: csrc/philox.h).
// Greedy k-means++, or K distinct rows. Once every distinct point is taken, the first row repeats.
struct KMeansInit {
    const float* points;   // (B, N, D)
    const int64_t* seeds;  // (B)
    int32_t* rows;         // (B, K)
    int64_t problems, count, clusters, width;
    int64_t restart;
    bool plus_plus;
};

// Lloyd's steps from the given centroids until labels repeat, centroids move by at most `tolerance` (squared, relative
// to the mean variance of the columns) or `steps` are done. Empty clusters move to the farthest points. The labels are
// those of KMeansAssign for the centroids returned; rows and offsets those of SortByCluster for the labels.
struct KMeans {
    const float* points;  // (B, N, D)
    float* centroids;     // (B, K, D), in and out
    int32_t* labels;      // (B, N)
    int32_t* rows;        // (B, N)
    int32_t* offsets;     // (B, K + 1)
    double* inertia;      // (B)
    int32_t* steps_done;  // (B)
    int64_t problems, count, clusters, width;
    int64_t steps;
    double tolerance;
};

// rows[b, offsets[b, k] : offsets[b, k + 1]] = the rows labelled k, ascending.
struct SortByCluster {
    const int32_t* labels;  // (B, N), in [0, K)
    int32_t* rows;          // (B, N)
    int32_t* offsets;       // (B, K + 1)
    int64_t problems, count, clusters;
};

// Transformer encoder layers inside every segment of a ragged batch, for P policies over S subsets of the same states.
// Token t of (p, s) is [states[rows[s, t]], columns[p, rows[s, t]]]; segment k of (p, s) is the tokens
// offsets[s, k] : offsets[s, k + 1] of that subset, offsets[s, 0] = 0. Segment (p, s, k) is number (p * S + s) * K + k.
//
// `parameters` holds, one after the other, as torch.nn.TransformerEncoderLayer names and lays them out:
//   if project: weight (E, ds + dc), bias (E)      without it ds + dc = E
//   per layer:  in_proj_weight (3 E, E), in_proj_bias (3 E), out_proj.weight (E, E), out_proj.bias (E),
//               norm1.weight (E), norm1.bias (E), linear1.weight (F, E), linear1.bias (F),
//               linear2.weight (E, F), linear2.bias (E), norm2.weight (E), norm2.bias (E)
struct SegmentEncoder {
    const float* states;      // (U, ds)
    const float* columns;     // (P, U, dc)
    const int32_t* rows;      // (S, N)
    const int32_t* offsets;   // (S, K + 1)
    const int32_t* order;     // (S * K): s * K + k, longest segment first
    const float* parameters;  // as above
    float* out;               // pool: (P, S, K, E), the mean of each segment; else (P, S, N, E), the tokens
    float* workspace;         // segment_encoder_workspace() floats
    int64_t policies, subsets, states_count, state_width, column_width, subset_size, clusters;
    int64_t width, layers, heads, feedforward;
    int64_t longest;  // segment
    Dropout dropout;  // layer and site 0
    bool project, pool;
    bool bf16;  // operands of the layers' products, where the device has it
};

// On the CPU alone. Recomputes the forward pass; what SegmentEncoder calls `out` is not written.
struct SegmentEncoderBackward {
    SegmentEncoder forward;
    const float* grad_out;   // as forward.out
    float* grad_parameters;  // as forward.parameters
    float* grad_columns;     // as forward.columns, or null
};

}  // namespace sopr
