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

}  // namespace sopr
