// The points of one problem in blocks of kLanes: in input order at first, later grouped by cluster and distance, so
// that the points of a block have the same few centroids nearby.
#pragma once

#include "cpu/kmeans_points.h"

namespace sopr::SOPR_LEVEL {

struct Groups {
    static constexpr int32_t kNoAnchor = -1;
    static constexpr int64_t kChunkBlocks = kChunk / kLanes;

    Groups(int64_t count, int64_t width, int64_t clusters, Arena& memory)
        : count(count), width(width), clusters(clusters), blocks(blocks_of(count)) {
        const int64_t most = most_blocks();
        packed = memory.take<float>(most * kLanes * width);
        rows = memory.take<int32_t>(most * kLanes);
        labels = memory.take<int32_t>(most * kLanes);
        squared = memory.take<float>(most * kLanes);
        anchors = memory.take<int32_t>(most);
        keys = memory.take<int32_t>(count);
        order = memory.take<int32_t>(count);
        ends = memory.take<int32_t>(clusters * kBins + 1);
    }

    int64_t count, width, clusters, blocks;
    float* packed;     // (blocks, D, kLanes), scaled
    int32_t* rows;     // (blocks, kLanes); ~row for copies of a row that fill a block
    int32_t* labels;   // (blocks, kLanes)
    float* squared;    // (blocks, kLanes), to the centroid of the label
    int32_t* anchors;  // (blocks), the cluster of a block's points when they were grouped

    int64_t chunks() const { return ceil_div(blocks, kChunkBlocks); }
    int64_t positions() const { return blocks * kLanes; }
    int64_t most_blocks() const { return blocks_of(count) + clusters; }
    int64_t row_at(int64_t position) const { return rows[position] < 0 ? ~rows[position] : rows[position]; }

    void fill(const float* points, float scale, int threads);
    void group(const float* points, float scale, int threads);

  private:
    static constexpr int kBins = 16;  // bins of distance per cluster, four per octave

    int32_t* keys;   // (N), label * kBins + bin of each row
    int32_t* order;  // (N), rows sorted by key
    int32_t* ends;   // (K · kBins + 1)

    int64_t add_blocks(int64_t block, const int32_t* members, int64_t size, int32_t anchor);
    void pack_blocks(const float* points, float scale, int threads);
};

// Put `size` rows into blocks from `block` on; returns the block after them.
inline int64_t Groups::add_blocks(int64_t block, const int32_t* members, int64_t size, int32_t anchor) {
    for (int64_t first = 0; first < size; first += kLanes, ++block) {
        anchors[block] = anchor;
        for (int64_t lane = 0; lane < kLanes; ++lane) {
            const int64_t member = first + lane;
            rows[block * kLanes + lane] = member < size ? members[member] : ~members[size - 1];
            labels[block * kLanes + lane] = anchor;
        }
    }
    return block;
}

inline void Groups::pack_blocks(const float* points, float scale, int threads) {
    parallel_for(chunks(), threads, [&](int64_t chunk, int) {
        const int64_t begin = chunk * kChunkBlocks, end = min(begin + kChunkBlocks, blocks);
        for (int64_t block = begin; block < end; ++block) {
            const float* from[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) from[lane] = points + row_at(block * kLanes + lane) * width;
            pack_block(from, width, scale, packed + block * kLanes * width);
        }
    });
}

// Blocks in input order, without labels.
inline void Groups::fill(const float* points, float scale, int threads) {
    for (int64_t row = 0; row < count; ++row) order[row] = int32_t(row);
    blocks = add_blocks(0, order, count, kNoAnchor);
    pack_blocks(points, scale, threads);
}

// Regroup by label, then by distance. Labels move with their rows; distances must be computed again.
inline void Groups::group(const float* points, float scale, int threads) {
    const int32_t largest = magnitude_bits(largest_magnitude(squared, positions()));
    for (int64_t i = 0; i <= clusters * kBins; ++i) ends[i] = 0;
    for (int64_t position = 0; position < positions(); ++position) {
        if (rows[position] < 0) continue;
        const int32_t nearer = (largest - magnitude_bits(squared[position])) >> 21;
        const int32_t key = labels[position] * kBins + (nearer < kBins ? kBins - 1 - nearer : 0);
        keys[rows[position]] = key;
        ++ends[key + 1];
    }
    for (int64_t i = 0; i < clusters * kBins; ++i) ends[i + 1] += ends[i];
    for (int64_t row = 0; row < count; ++row) order[ends[keys[row]]++] = int32_t(row);

    blocks = 0;
    int64_t begin = 0;
    for (int64_t k = 0; k < clusters; ++k) {
        const int64_t end = ends[(k + 1) * kBins - 1];
        blocks = add_blocks(blocks, order + begin, end - begin, int32_t(k));
        begin = end;
    }
    pack_blocks(points, scale, threads);
}

}  // namespace sopr::SOPR_LEVEL
