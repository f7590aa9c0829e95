// Which rows of segments each warp of the tensor-core encoder computes, and the order of its weights:
// segment_encoder_plan.cu.
//
// A warp owns a piece, 16 rows of one segment. A closed tile is up to kTileWarps pieces of whole segments; longer
// segments ("open") are cut into tiles of their own. Segments are numbered subset * clusters + cluster.
#pragma once

#include "cuda/segment_encoder_products.h"
#include "kernels.h"
#include "philox.h"

namespace sopr::cuda {

constexpr int kWidth = 64;     // of tokens
constexpr int kTileWarps = 8;  // pieces of a tile
constexpr int kTileTokens = kTileWarps * kTileRows;

template <class P>
constexpr int kChunkWords = 16 * kWarpSize * P::kUnitWords;  // of a chunk of weights, see PackedWeights

struct Piece {
    int32_t segment;  // -1: none
    int32_t row;      // the first, in its segment
};

// Tiles of several subsets, in the order of segments.
struct Tiles {
    Piece* pieces;   // (capacity, kTileWarps)
    int32_t* count;  // tiles there are
};

struct Plan {
    Tiles closed, open;
    // Scratch: tiles by subset, closed before open, and how many: (S, per_subset, kTileWarps), (S, 2).
    Piece* by_subset;
    int32_t* counts;
    int64_t closed_per_subset, open_per_subset;  // at most
};

// The most tiles of a subset. Two closed tiles in a row have more than kTileWarps pieces, or they would be one.
inline int64_t most_closed_tiles(int64_t rows, int64_t clusters) {
    const int64_t pieces = rows / kTileRows + (clusters < rows ? clusters : rows);
    return 2 * pieces / (kTileWarps + 1) + 1;
}
inline int64_t most_open_tiles(const SegmentEncoder& p) {
    const int64_t most = p.subset_size > kTileTokens ? 2 * p.subset_size / kTileTokens : 0;
    return 0 <= p.long_tiles && p.long_tiles < most ? p.long_tiles : most;
}

void make_plan(const SegmentEncoder&, int64_t first_subset, int64_t subsets, const Plan&, cudaStream_t);

// The projection's weights in Tf32's units, inputs padded with zeros, and its bias. Then the vectors of each layer:
// in_proj_bias, out_proj.bias, norm1, linear1.bias, linear2.bias, norm2. Then the layers' weights in chunks of 2048, 32
// outputs of 64 inputs or 64 outputs of 32 inputs, in order of use: keys (two), values (two), queries and output
// projection (two pairs), feed-forward up and down (F / 32 pairs).
//
// For the backward pass, more chunks follow: those of each layer, the last layer first, then the projection's weights
// of the columns, 32 columns of 64 outputs in a chunk of Tf32. A layer's chunks are, for each 32 hidden values, up and
// the transposes of down and up; then, for each 32 columns of heads, queries, keys, values, the transpose of the output
// projection, and the transposes of queries, keys and values.
struct PackedWeights {
    int64_t layers, feedforward, units_of_inputs;  // the latter 0 without projection
    int words_per_chunk;

    PackedWeights(const SegmentEncoder& p)
        : layers(p.layers),
          feedforward(p.feedforward),
          units_of_inputs(p.project ? (p.state_width + p.column_width + kUnitDepth - 1) / kUnitDepth : 0),
          words_per_chunk(p.bf16 ? kChunkWords<Bf16> : kChunkWords<Tf32>) {}

    SOPR_INLINE int64_t chunks() const { return 8 + 2 * (feedforward / 32); }
    SOPR_INLINE int64_t projection_words() const {
        return units_of_inputs * (kWidth / kTileColumns) * kWarpSize * Tf32::kUnitWords;
    }
    SOPR_INLINE int64_t before_layers() const { return projection_words() + (units_of_inputs ? kWidth : 0); }
    SOPR_INLINE int64_t vectors() const { return 9 * kWidth + feedforward; }
    SOPR_INLINE int64_t before_chunks() const { return before_layers() + layers * vectors(); }
    SOPR_INLINE int64_t before_backward() const { return before_chunks() + layers * chunks() * words_per_chunk; }
    SOPR_INLINE int64_t backward_chunks() const { return 3 * (feedforward / 32) + 14; }
    SOPR_INLINE int64_t before_columns() const {
        return before_backward() + layers * backward_chunks() * words_per_chunk;
    }

    // The first chunk of the backward pass through a layer.
    SOPR_INLINE int64_t first_backward_chunk(int64_t layer) const {
        return layers * chunks() + (layers - 1 - layer) * backward_chunks();
    }
};

constexpr int64_t kWordsOfColumns = kChunkWords<Tf32>;  // of a chunk of the columns' weights

void pack_weights(const SegmentEncoder&, uint32_t* packed, cudaStream_t);
int64_t packed_backward_words(const SegmentEncoder&);  // all, those of the forward pass included
void pack_backward_weights(const SegmentEncoder&, uint32_t* packed, cudaStream_t);

}  // namespace sopr::cuda
