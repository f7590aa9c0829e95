// What the kernels of segment_attention.cu share: a block owns kTile rows of one segment's head, kRows a warp, and
// streams kTile others past them, one a lane. Wide heads pass through shared memory kColumns columns at a time.
#pragma once

#include "cuda/launch.h"
#include "cuda/segments.h"

namespace sopr::cuda {

constexpr int kWarps = 8, kRows = 4;
constexpr int kThreads = kWarps * kLanes;
constexpr int kTile = kWarps * kRows;
constexpr int kColumns = 64;
constexpr int kParts = kColumns / kLanes;  // columns of a lane
constexpr int kPitch = kColumns + 1;       // then neither a column nor a row of a tile meets in one bank
static_assert(kTile == kLanes);

// One segment and head of (T, H, D) arrays.
struct Head {
    int64_t begin, length, dim, heads, head;

    SOPR_INLINE Head(const SegmentAttention& p, const Span& segment, int64_t head)
        : begin(segment.begin), length(segment.length), dim(p.dim), heads(p.heads), head(head) {}
    SOPR_INLINE int64_t at(int64_t row) const { return ((begin + row) * heads + head) * dim; }
    SOPR_INLINE int64_t statistics_at(int64_t row) const { return ((begin + row) * heads + head) * 2; }
    SOPR_INLINE int width(int64_t column) const { return int(dim - column < kColumns ? dim - column : kColumns); }
};

// Blocks that share the tiles of one segment's head: enough to fill a device when there are few heads.
SOPR_INLINE int64_t blocks_of_a_head(int64_t heads_in_all) {
    const int64_t wanted = 1024 / heads_in_all;
    return wanted < 1 ? 1 : wanted < 256 ? wanted : 256;
}

}  // namespace sopr::cuda
