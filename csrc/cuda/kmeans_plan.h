// How many blocks share a k-means problem, and what they hold in shared memory. Needs no GPU.
#pragma once

#include <cstdint>

#include "philox.h"  // SOPR_INLINE

#ifndef SOPR_KMEANS_LEAST_ROWS
#define SOPR_KMEANS_LEAST_ROWS 512  // one for each thread
#endif
#ifndef SOPR_KMEANS_THREADS
#define SOPR_KMEANS_THREADS 512
#endif

namespace sopr::cuda {

constexpr int kProblemThreads = SOPR_KMEANS_THREADS, kProblemWarps = kProblemThreads / 32;
constexpr int kTeamBytes = (kProblemWarps + 3) / 2 * 16;  // of Team
constexpr int kKMeansBin = 128;       // rows per sum of weights; a block's share of rows is a multiple
constexpr int kKMeansDistances = 16;  // bins of distance per cluster, four per octave

struct KMeansDevice {
    bool block_clusters;  // compute capability 9.0 or later
    int64_t processors;   // each runs one block at a time, since 512 threads take all registers
    int64_t shared_bytes;
    int64_t least_rows;  // that are worth a block
};

struct KMeansShape {
    int64_t problems, count, clusters, width;
    int64_t fixed_bytes;        // of shared memory, next to centroids and rows
    int64_t row_bytes;          // of a row that is held
    int64_t parts, part_bytes;  // of centroids and what is held with them
};

struct KMeansPlan {
    int blocks;      // per problem: 1, 2, 4 or 8
    int64_t share;   // rows of a block
    int64_t stride;  // floats of a centroid in memory, so that lanes read different ones without bank conflicts
    int64_t parts;   // of the centroids that are held at once
    bool holds_points;
    int shared_bytes;
};

SOPR_INLINE int64_t kmeans_stride(int64_t width) { return ((width + 3) / 4 | 1) * 4; }

inline KMeansPlan plan_kmeans(const KMeansDevice& device, const KMeansShape& shape) {
    constexpr int kMostBlocks = 8;  // that every device with clusters runs
    constexpr int64_t kLeastParts = 16;
    const auto share_of = [&](int blocks) {
        const int64_t bins = (shape.count + kKMeansBin - 1) / kKMeansBin;
        return (bins + blocks - 1) / blocks * kKMeansBin;
    };
    KMeansPlan plan = {};
    plan.stride = kmeans_stride(shape.width);
    const auto parts_in = [&](int64_t bytes) {
        const int64_t most = bytes < shape.part_bytes ? 0 : bytes / shape.part_bytes;
        return most < shape.parts ? most : shape.parts;
    };
    // Points leave room for kLeastParts of the centroids.
    const int64_t fit = parts_in(device.shared_bytes - shape.fixed_bytes);
    const int64_t least = fit < shape.parts && fit > kLeastParts ? kLeastParts : fit;
    const int64_t bytes = shape.fixed_bytes + least * shape.part_bytes;
    const auto points = [&](int blocks) { return share_of(blocks) * shape.row_bytes; };
    const auto fits = [&](int blocks) { return bytes + points(blocks) <= device.shared_bytes; };

    // The fewest blocks that hold the points, else one; then more while processors are idle.
    const int most = device.block_clusters ? kMostBlocks : 1;
    plan.blocks = 1;
    while (plan.blocks < most && !fits(plan.blocks)) plan.blocks *= 2;
    if (!fits(plan.blocks)) plan.blocks = 1;
    while (plan.blocks < most && shape.problems * plan.blocks * 2 <= device.processors &&
           share_of(plan.blocks * 2) >= device.least_rows)
        plan.blocks *= 2;
    plan.share = share_of(plan.blocks);
    plan.holds_points = fits(plan.blocks);
    const int64_t next = shape.fixed_bytes + (plan.holds_points ? points(plan.blocks) : 0);
    plan.parts = parts_in(device.shared_bytes - next);
    plan.shared_bytes = int(next + plan.parts * shape.part_bytes);
    return plan;
}

// What kmeans holds of a part of centroids, two products on tensor cores: rows of kmeans_filter.h and, of few columns,
// their own.
constexpr int64_t kMostColumns = 32;
constexpr int64_t kPart = 16;
SOPR_INLINE int64_t kmeans_filter_stride(int64_t width) { return (width + 7) / 8 * 8 + 4; }
SOPR_INLINE int64_t kmeans_held_stride(int64_t width) { return width > kMostColumns ? 0 : kmeans_stride(width); }
SOPR_INLINE int64_t kmeans_part_bytes(int64_t width) {
    return kPart * (kmeans_held_stride(width) + kmeans_filter_stride(width)) * 4;
}

}  // namespace sopr::cuda
