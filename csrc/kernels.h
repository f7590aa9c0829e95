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

}  // namespace sopr
