// Segments of a ragged batch, or of each cell of an encoder's (policy, subset) grid.
#pragma once

#include "kernels.h"
#include "philox.h"

namespace sopr::cuda {

struct Span {
    int64_t begin, length;
};

// Cell c owns rows c * size : (c + 1) * size and has the offsets of subset (first + c) % S; rows after its last segment
// belong to no segment. Operators over plain offsets have one cell.
struct Segments {
    const int32_t* offsets;  // (S, K + 1)
    int64_t clusters, subsets = 1, size = 0, first = 0;

    SOPR_INLINE const int32_t* offsets_of(int64_t cell) const {
        return offsets + (first + cell) % subsets * (clusters + 1);
    }
    SOPR_INLINE Span operator[](int64_t segment) const {
        const int64_t cell = segment / clusters;
        const int32_t* bounds = offsets_of(cell) + segment % clusters;
        return {cell * size + bounds[0], bounds[1] - bounds[0]};
    }
    // Whether a row belongs to a segment.
    SOPR_INLINE bool owns(int64_t row) const { return row % size < offsets_of(row / size)[clusters]; }
};

}  // namespace sopr::cuda
