// Positions of rows sorted by cluster, then by distance, so that few centroids are near to the points of a group.
#pragma once

#include "cuda/kmeans_team.h"

namespace sopr::cuda {

struct Grouping {
    int32_t* order;    // (N), the row at each position
    int32_t* anchors;  // (N), the label of that row
    int32_t* ends;     // (clusters, kKMeansDistances)

    // Sort rows first : end of every block. Rows with equal label and bin take an order that depends on the run, which
    // changes how many distances are computed, but no result.
    __device__ void group(Team& team, int64_t first, int64_t end, int64_t clusters, const int32_t* labels,
                          const float* squared) const {
        unsigned farthest = 0;
        for (int64_t row = first + threadIdx.x; row < end; row += kProblemThreads) {
            const unsigned bits = magnitude_bits(squared[row]);
            if (bits > farthest) farthest = bits;
        }
        farthest = team.largest(farthest);
        const auto key_of = [&](int64_t row) {
            const unsigned nearer = (farthest - magnitude_bits(squared[row])) >> 21;
            return labels[row] * kKMeansDistances + int(nearer < kKMeansDistances ? kKMeansDistances - 1 - nearer : 0);
        };
        const int64_t keys = clusters * kKMeansDistances;
        for (int64_t i = team.rank * kProblemThreads + threadIdx.x; i < keys; i += team.blocks * kProblemThreads)
            ends[i] = 0;
        team.wait();
        for (int64_t row = first + threadIdx.x; row < end; row += kProblemThreads) atomicAdd(ends + key_of(row), 1);
        team.wait();
        if (team.rank == 0) to_begins(team, keys);
        team.wait();
        for (int64_t row = first + threadIdx.x; row < end; row += kProblemThreads) {
            const int32_t position = atomicAdd(ends + key_of(row), 1);
            order[position] = int32_t(row);
            anchors[position] = labels[row];
        }
        team.wait();
    }

  private:
    // Replace sizes by the sums of those before, in one block.
    __device__ void to_begins(const Team& team, int64_t keys) const {
        const int64_t each = (keys + kProblemThreads - 1) / kProblemThreads;
        const int64_t begin = threadIdx.x * each, end = begin + each < keys ? begin + each : keys;
        int32_t own = 0;
        for (int64_t i = begin; i < end; ++i) own += ends[i];
        int32_t before = team.sum_before(own);
        for (int64_t i = begin; i < end; ++i) {
            const int32_t size = ends[i];
            ends[i] = before;
            before += size;
        }
    }
};

}  // namespace sopr::cuda
