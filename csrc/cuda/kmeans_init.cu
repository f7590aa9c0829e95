// Initial centroids of k-means, one block per problem. Draws and integer weights are those of csrc/cpu/kmeans_init.cpp,
// so the rows are too.
#include "cuda/kernels_cuda.h"
#include "cuda/kmeans_block.h"

namespace sopr::cuda {
namespace {

constexpr int64_t kBin = kKMeansBin;

// The first i in begin : end at which the cumulative sum of value(i) passes the target; subtracts the sum before i from
// the target. All lanes of a warp must call it.
template <class Value>
__device__ int64_t first_above(int64_t begin, int64_t end, uint64_t& target, const Value& value) {
    const int lane = threadIdx.x % kWarpSize;
    for (int64_t base = begin; base < end; base += kWarpSize) {
        const unsigned long long addend = base + lane < end ? value(base + lane) : 0;
        unsigned long long sum = addend;
        for (int step = 1; step < kWarpSize; step *= 2) {
            const unsigned long long before = __shfl_up_sync(kWholeWarp, sum, step);
            if (lane >= step) sum += before;
        }
        const unsigned passed = __ballot_sync(kWholeWarp, sum > target);
        if (passed) {
            const int first = __ffs(int(passed)) - 1;
            target -= __shfl_sync(kWholeWarp, sum - addend, first);
            return base + first;
        }
        target -= __shfl_sync(kWholeWarp, sum, kWarpSize - 1);
    }
    return end - 1;
}

struct PlusPlus {
    int64_t count, width, clusters, bins;
    const float* points;  // (N, D), not scaled
    float* squared;       // (N), scaled, to the nearest centre
    int64_t* weights;     // (bins), sums over kBin rows
    float scale, to_weight;

    __device__ PlusPlus(const KMeansInit& p, const KMeansInitMemory& memory, int64_t b)
        : count(p.count),
          width(p.width),
          clusters(p.clusters),
          bins((p.count + kBin - 1) / kBin),
          points(p.points + b * count * width),
          squared(memory.squared + b * count),
          weights(memory.weights + b * bins),
          scale(scale_of(largest_magnitude(points, count * width))),
          to_weight(1) {}

    __device__ uint64_t weight_of(float x) const { return uint64_t(int64_t(x * to_weight)); }

    // squared[row] = min(squared[row], distance to `centre`); the first call initialises.
    __device__ void add_centre(int64_t centre, bool first) {
        for (int64_t row = threadIdx.x; row < count; row += kProblemThreads) {
            const float distance = squared_distance(points + row * width, points + centre * width, scale, scale, width);
            if (first || distance <= squared[row]) squared[row] = distance;
        }
        __syncthreads();
    }

    // Choose the unit of the weights so that their sum uses 62 bits, however small the distances are.
    __device__ void set_unit() { to_weight = integer_scale_of(largest_magnitude(squared, count), count); }

    // Compute the weights of bins; returns their sum.
    __device__ uint64_t weigh() {
        const int lane = threadIdx.x % kWarpSize;
        unsigned long long total = 0;
        for (int64_t bin = threadIdx.x / kWarpSize; bin < bins; bin += kProblemWarps) {
            unsigned long long sum = 0;
            for (int64_t row = bin * kBin + lane; row < (bin + 1) * kBin && row < count; row += kWarpSize)
                sum += weight_of(squared[row]);
            for (int step = kWarpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
            if (lane == 0) {
                weights[bin] = int64_t(sum);
                total += sum;
            }
        }
        return block_sum(total);
    }

    // The row at which the cumulative sum of weights passes the target.
    __device__ int32_t sample(uint64_t target) const {
        const int64_t bin = first_above(0, bins, target, [&](int64_t i) { return uint64_t(weights[i]); });
        const int64_t end = (bin + 1) * kBin < count ? (bin + 1) * kBin : count;
        return int32_t(first_above(bin * kBin, end, target, [&](int64_t row) { return weight_of(squared[row]); }));
    }

    // The drawn row that reduces the weights most, ties to the first.
    template <int kDepth>
    __device__ int best_of(const int32_t* drawn, int candidates, float* tile) const {
        int best = 0;
        unsigned long long most = 0;
        Comparison<kDepth> comparison;
        for (int begin = 0; begin < candidates; begin += kGroup) {
            const int number = candidates - begin < kGroup ? candidates - begin : kGroup;
            unsigned long long gains[kGroup] = {};
            for (int64_t first = 0; first < count; first += kProblemThreads) {
                const int64_t row = first + threadIdx.x;
                comparison.measure(
                    row < count ? points + row * width : nullptr, scale, true,
                    [&](int g) { return points + int64_t(drawn[begin + g]) * width; }, scale, number, width, tile);
                if (row >= count) continue;
                const float now = squared[row];
#pragma unroll
                for (int g = 0; g < kGroup; ++g)
                    if (g < number && comparison.squared[g] <= now)
                        gains[g] += weight_of(now) - weight_of(comparison.squared[g]);
            }
#pragma unroll
            for (int g = 0; g < kGroup; ++g) {
                const unsigned long long gain = block_sum(gains[g]);
                if (g < number && gain > most) {
                    most = gain;
                    best = begin + g;
                }
            }
        }
        return best;
    }
};

template <int kDepth>
__global__ void __launch_bounds__(kProblemThreads)
    plus_plus_kernel(KMeansInit p, KMeansInitMemory memory, int candidates) {
    __shared__ float tile[kGroup * kDepth];
    __shared__ int32_t drawn[kMaxCandidates];
    const ClusteringDraw draw = {p.seeds[blockIdx.x], p.restart};
    int32_t* rows = p.rows + blockIdx.x * p.clusters;
    PlusPlus problem(p, memory, blockIdx.x);
    const int64_t start = int64_t(draw(uint64_t(p.count), 0, 0));
    problem.add_centre(start, true);
    problem.set_unit();
    if (threadIdx.x == 0) rows[0] = int32_t(start);
    for (int64_t round = 1; round < p.clusters; ++round) {
        uint64_t total = problem.weigh();
        if (total >> 36 < uint64_t(p.count)) {
            problem.set_unit();
            total = problem.weigh();
        }
        if (total == 0) {
            for (int64_t k = round + threadIdx.x; k < p.clusters; k += kProblemThreads) rows[k] = int32_t(start);
            return;
        }
        for (int c = threadIdx.x / kWarpSize; c < candidates; c += kProblemWarps) {
            const int32_t row = problem.sample(draw(total, round, c));
            if (threadIdx.x % kWarpSize == 0) drawn[c] = row;
        }
        __syncthreads();
        const int best = problem.best_of<kDepth>(drawn, candidates, tile);
        problem.add_centre(drawn[best], false);
        if (threadIdx.x == 0) rows[round] = drawn[best];
    }
}

// Floyd's method, in one thread: after step j, the rows are a uniform sample of the first N - K + j + 1.
__global__ void __launch_bounds__(kProblemThreads) distinct_kernel(KMeansInit p, KMeansInitMemory memory) {
    const ClusteringDraw draw = {p.seeds[blockIdx.x], p.restart};
    int32_t* rows = p.rows + blockIdx.x * p.clusters;
    float* taken = memory.squared + blockIdx.x * p.count;
    for (int64_t i = threadIdx.x; i < p.count; i += kProblemThreads) taken[i] = 0;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int64_t j = 0; j < p.clusters; ++j) {
        const int64_t last = p.count - p.clusters + j;
        const int64_t chosen = int64_t(draw(uint64_t(last) + 1, j, 0));
        const int64_t row = taken[chosen] != 0 ? last : chosen;
        taken[row] = 1;
        rows[j] = int32_t(row);
    }
}

}  // namespace

void kmeans_init(const KMeansInit& p, const KMeansInitMemory& memory, cudaStream_t stream) {
    if (p.problems == 0) return;
    if (!p.plus_plus) return launch("kmeans_init", distinct_kernel, p.problems, 1, kProblemThreads, stream, p, memory);
    const auto kernel = by_width(p.width, [](auto depth) { return &plus_plus_kernel<decltype(depth)::value>; });
    launch("kmeans_init", kernel, p.problems, 1, kProblemThreads, stream, p, memory, candidates_of(p.clusters));
}

}  // namespace sopr::cuda
