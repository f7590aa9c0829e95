// Lloyd's algorithm, a cluster of blocks per problem, with the steps of csrc/cpu/kmeans.cpp. Sums of coordinates are
// integers, which atomics add in any order, so results do not depend on the number of blocks.
//
// Skips centroids that cannot be nearest, as csrc/cpu/kmeans_nearby.h does, for groups of 32 points. A group may hold
// points of several anchors; it is compared with the centroids near to any of them.
#include "cuda/kernels_cuda.h"
#include "cuda/kmeans_groups.h"
#include "cuda/kmeans_points.h"

namespace sopr::cuda {
namespace {

struct Lloyd {
    Team& team;
    Points points;
    Centroids all_centroids;  // held, or else in memory
    Grouping grouping;
    int held_centroids;  // where in shared memory they lie, -1: nowhere
    float* in_memory;    // (K, stride), of all blocks
    float* to_integer;   // (D) in shared memory: powers of two that turn columns into integers
    int32_t* labels;     // (N)
    float* squared;      // (N), to the centroid of the label
    int64_t* sums;       // (K, D)
    int64_t* sizes;      // (K)
    double* moved;       // (K)
    int64_t count, clusters;

    __device__ static void add(int64_t* to, int64_t value) {
        atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
    }

    __device__ float* held() const { return reinterpret_cast<float*>(dynamic_shared() + held_centroids); }

    // Visit the rows of this block.
    template <class Visit>
    __device__ void each_row(const Visit& visit) const {
        for (int64_t row = points.first + threadIdx.x; row < points.end; row += kProblemThreads) visit(row);
    }

    template <class Column>
    __device__ void relabel(int64_t row, int32_t to, const Column& column) const {
        const int64_t from = labels[row], width = points.width;
        labels[row] = to;
        for (int64_t d = 0; d < width; ++d) {
            const int64_t x = as_integer(column(d), 1, to_integer[d]);
            add(sums + to * width + d, x);
            if (from >= 0) add(sums + from * width + d, -x);
        }
        add(sizes + to, 1);
        if (from >= 0) add(sizes + from, -1);
    }

    template <int kFours>
    __device__ float to_anchor(const TwoPoints<kFours>& two, const float* centroid) const {
        if constexpr (kFours == 0) {
            return squared_distance(
                points.width, [&](int64_t d) { return two.own(d); }, [&](int64_t d) { return centroid[d]; });
        } else {
            float sum = 0;
            each_column<kFours>(two.last, [&](int d) {
                const float difference = two.own(d) - centroid[d];
                sum = fmaf(difference, difference, sum);
            });
            return sum;
        }
    }

    template <int kFours>
    __device__ float between(const float* a, const float* b) const {
        if constexpr (kFours == 0) {
            return squared_distance(points.width, [&](int64_t d) { return a[d]; }, [&](int64_t d) { return b[d]; });
        } else {
            const Row<kFours> x(a), y(b);
            float sum = 0;
            each_column<kFours>(last_of<kFours>(points.width), [&](int d) {
                const float difference = x[d] - y[d];
                sum = fmaf(difference, difference, sum);
            });
            return sum;
        }
    }

    // A word of compare_listed(): the centroids from base on that are near to the anchor of a point.
    template <int kFours>
    __device__ unsigned nearby(const Centroids& centroids, int32_t anchor, float distance, bool exists,
                               int64_t base) const {
        const int words = words_of(base, clusters);
        unsigned word = 0, left = __ballot_sync(kWholeWarp, exists);
        while (left) {
            const int32_t common = __shfl_sync(kWholeWarp, anchor, __ffs(int(left)) - 1);
            const bool same = exists && anchor == common;
            left &= ~__ballot_sync(kWholeWarp, same);
            const unsigned farthest = __reduce_max_sync(kWholeWarp, same ? magnitude_bits(distance) : 0u);
            const float reach = with_rounding_margin(4 * __uint_as_float(farthest), points.width);
            const float* from = centroids[common];
            for (int w = 0; w < words; ++w) {
                const int64_t k = base + w * kWarpSize + lane_of_thread();
                COUNT_DISTANCES(1);
                const float apart = between<kFours>(from, centroids[k < clusters ? k : clusters - 1]);
                // A reach that is NaN reaches everything.
                const unsigned near = __ballot_sync(kWholeWarp, k < clusters && !(apart > reach));
                if (lane_of_thread() == w) word |= near;
            }
        }
        return word;
    }

    // Label every point of this block with its nearest centroid; returns how many of this thread's labels changed.
    template <int kFours>
    __device__ __noinline__ int64_t run() const {
        const Centroids centroids = kFours ? Centroids{held(), all_centroids.stride, 1} : all_centroids;
        int64_t changed = 0;
        for (int64_t group = warp_of_thread(); group < points.groups(); group += kProblemWarps) {
            const int64_t row = points.row_of(group);
            const TwoPoints<kFours> two(points, group, row);
            int32_t anchor = 0;
            float distance = 0;
            if (points.order) {
                if (row >= 0) anchor = grouping.anchors[points.first + group * kWarpSize + lane_of_thread()];
                COUNT_DISTANCES(1);
                distance = to_anchor<kFours>(two, centroids[anchor]);
            }
            Nearest nearest[2];
            for (int64_t base = 0; base < clusters; base += kListed) {
                const unsigned word = points.order ? nearby<kFours>(centroids, anchor, distance, row >= 0, base)
                                                   : all_listed(base, clusters);
                compare_listed(two, centroids, base, word, words_of(base, clusters), nearest);
            }
            const Nearest own = nearest_of_halves(nearest);
            if (row < 0) continue;
            squared[row] = own.squared;
            if (own.label == labels[row]) continue;
            relabel(row, own.label, Column{points, group, row, lane_of_thread()});
            ++changed;
        }
        return changed;
    }

    // Label every point with its nearest centroid; returns how many labels changed.
    __device__ int64_t assign() const {
        return team.sum(held_centroids < 0 ? run<0>() : by_width(points.width, *this));
    }

    // Scale everything, without labels yet. `largest` (D) lies in shared memory.
    __device__ void begin(const float* start, int* largest) {
        const int64_t width = points.width, mine = team.rank * kProblemThreads + threadIdx.x;
        const int64_t threads = team.blocks * kProblemThreads;
        for (int64_t d = threadIdx.x; d < width; d += kProblemThreads) largest[d] = 0;
        __syncthreads();
        unsigned of_all = 0;
        for (int64_t d = 0; d < width; ++d) {
            unsigned bits = 0;
            each_row([&](int64_t row) {
                const unsigned own = magnitude_bits(points.raw[row * width + d]);
                if (own > bits) bits = own;
            });
            bits = __reduce_max_sync(kWholeWarp, bits);
            if (lane_of_thread() == 0) atomicMax(largest + d, int(bits));
            if (bits > of_all) of_all = bits;
        }
        const float of_points = __uint_as_float(team.largest(of_all));
        const float scale = scale_of(fmaxf(of_points, largest_magnitude(team, start, clusters * width)));
        points.scale = scale;
        for (int64_t d = threadIdx.x; d < width; d += kProblemThreads) {
            int bits = 0;
            for (unsigned block = 0; block < team.blocks; ++block) {
                const int other = *shared_of_block(largest + d, block);
                if (other > bits) bits = other;
            }
            to_integer[d] = integer_scale_of(__uint_as_float(unsigned(bits)) * scale, count);
        }
        for (int64_t i = mine; i < clusters * width; i += threads) {
            in_memory[i / width * all_centroids.stride + i % width] = start[i] * scale;
            sums[i] = 0;
        }
        for (int64_t k = mine; k < clusters; k += threads) sizes[k] = 0;
        each_row([&](int64_t row) { labels[row] = -1; });
        points.hold();
        team.wait();
        hold_centroids();
    }

    // Copy the centroids that all blocks have written; they have waited for each other.
    __device__ void hold_centroids() const {
        if (held_centroids < 0) return;
        const int64_t width = points.width;
        for (int64_t i = threadIdx.x; i < clusters * width; i += kProblemThreads) {
            const int64_t place = i / width * all_centroids.stride + i % width;
            held()[place] = in_memory[place];
        }
        __syncthreads();
    }

    __device__ int64_t first_empty() const {
        int64_t first = clusters;
        for (int64_t k = threadIdx.x; k < clusters; k += kProblemThreads)
            if (sizes[k] == 0 && k < first) first = k;
        return team.of_block(first, [](int64_t a, int64_t b) { return a < b ? a : b; });
    }

    // The row with the largest finite distance, ties to the first; -1 if every point lies on a centroid.
    __device__ int64_t farthest() const {
        unsigned long long key = 0;  // bits of non-negative floats are ordered like the floats
        each_row([&](int64_t row) {
            if (!(squared[row] < INFINITY)) return;
            const unsigned long long bits = __float_as_uint(squared[row]);
            const unsigned long long row_key = bits << 32 | (0xFFFFFFFFu - uint32_t(row));
            if (row_key > key) key = row_key;
        });
        key = team.largest(key);
        return key >> 32 ? int64_t(0xFFFFFFFFu - uint32_t(key)) : -1;
    }

    // Move the centroid of every empty cluster to the farthest point and relabel the points that are nearest to it;
    // returns whether there was one. Ignores points that are not finite, since they would make this loop endless.
    __device__ __noinline__ bool fill_empty() const {
        for (bool filled = false;; filled = true) {
            const int64_t k = first_empty();
            if (k == clusters) return filled;
            const int64_t chosen = farthest();
            if (chosen < 0) return filled;
            float* centroid = (held_centroids < 0 ? in_memory : held()) + k * all_centroids.stride;
            if (held_centroids >= 0 || team.rank == 0)
                for (int64_t d = threadIdx.x; d < points.width; d += kProblemThreads)
                    centroid[d] = points.scaled(chosen, d);
            team.wait();
            each_row([&](int64_t row) {
                const auto column = [&](int64_t d) { return points.scaled(row, d); };
                const float distance = squared_distance(points.width, column, [&](int64_t d) { return centroid[d]; });
                if (!(distance <= squared[row]) || (distance == squared[row] && labels[row] < k)) return;
                relabel(row, int32_t(k), column);
                squared[row] = distance;
            });
            team.wait();
        }
    }

    // Group the points by cluster and distance.
    __device__ __noinline__ void group() {
        grouping.group(team, points.first, points.end, clusters, labels, squared);
        points.order = grouping.order;
        points.hold();
        __syncthreads();
    }

    __device__ static double sum_of_warp(double x) {  // the order of sum_of_lanes()
        for (int step = kWarpSize / 2; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
        return x;
    }

    // Move every centroid to the mean of its points; returns the sum of squared moves. Each warp moves whole centroids.
    __device__ __noinline__ double move_centroids() const {
        const int64_t width = points.width, lane = lane_of_thread();
        for (int64_t k = team.rank * kProblemWarps + warp_of_thread(); k < clusters; k += team.blocks * kProblemWarps) {
            const int64_t size = sizes[k];
            double of_cluster = 0;
            for (int64_t d = lane; d < width; d += kWarpSize) {
                float place = all_centroids[k][d];
                if (size > 0) {
                    const double mean = double(sums[k * width + d]) / double(size) / double(to_integer[d]);
                    const double move = double(float(mean)) - double(place);
                    of_cluster = fma(move, move, of_cluster);
                    place = float(mean);
                }
                in_memory[k * all_centroids.stride + d] = place;
            }
            of_cluster = sum_of_warp(of_cluster);
            if (lane == 0) moved[k] = of_cluster;
        }
        team.wait();
        hold_centroids();
        double sum = 0;
        for (int64_t k = lane; k < clusters; k += kWarpSize) sum += moved[k];
        return sum_of_warp(sum);
    }

    // Mean variance of the columns, by which scikit-learn scales its tolerance too.
    __device__ __noinline__ double mean_variance() const {
        const VarianceUnit unit(count);
        const int64_t width = points.width;
        double variance = 0;
        for (int64_t d = 0; d < width; ++d) {
            int64_t sum = 0, squares = 0;
            for (int64_t k = threadIdx.x; k < clusters; k += kProblemThreads) sum += sums[k * width + d];
            sum = team.of_block(sum, [](int64_t a, int64_t b) { return a + b; });
            const double mean = double(sum) / (double(count) * double(to_integer[d]));
            each_row([&](int64_t row) { squares += unit.square(double(points.scaled(row, d)) - mean, to_integer[d]); });
            variance += unit.variance(team.sum(squares), to_integer[d], count);
        }
        return variance / double(width);
    }

    __device__ int32_t solve(int64_t steps, double tolerance) {
        double allowed = 0;
        int64_t stale = 0;  // upper bound of the points that left the cluster of their anchor
        int32_t done = 0;
        while (done < steps) {
            ++done;
            const int64_t changed = assign();
            if (!fill_empty() && changed == 0) return done;
            if (done == 1 && tolerance > 0) allowed = tolerance * mean_variance();
            stale += changed;
            if (count >= kHalf * clusters && stale * 8 >= count) {
                group();
                stale = 0;
            }
            if (move_centroids() <= allowed) break;
        }
        assign();
        fill_empty();
        return done;
    }

    __device__ double inertia() const {
        unsigned bits = 0;
        each_row([&](int64_t row) {
            const unsigned own = magnitude_bits(squared[row]);
            if (own > bits) bits = own;
        });
        const float largest = __uint_as_float(team.largest(bits));
        if (!(largest < INFINITY)) return largest;
        const float unit = integer_scale_of(largest, count);
        int64_t sum = 0;
        each_row([&](int64_t row) { sum += as_integer(squared[row], 1, unit); });
        return double(team.sum(sum)) / double(unit) / double(points.scale) / double(points.scale);
    }
};

__global__ void __launch_bounds__(kProblemThreads) lloyd_kernel(KMeans p, KMeansMemory memory, KMeansPlan plan) {
    Team team(dynamic_shared());
    const int64_t b = team.problem(), width = p.width;
    float* to_integer = reinterpret_cast<float*>(dynamic_shared() + Team::kBytes);
    int* largest = reinterpret_cast<int*>(to_integer + (width + 3) / 4 * 4);
    const int held_centroids = int(kmeans_bytes(width));
    const int held_points = held_centroids + (plan.holds_centroids ? int(p.clusters * plan.stride * 4) : 0);
    const int64_t first = team.rank * plan.share, end = first + plan.share < p.count ? first + plan.share : p.count;
    float* in_memory = memory.centroids + b * p.clusters * plan.stride;
    float* start = p.centroids + b * p.clusters * width;
    Lloyd lloyd = {
        team,
        {p.points + b * p.count * width, plan.holds_points ? held_points : -1, nullptr, first, end, width, 1},
        {plan.holds_centroids ? reinterpret_cast<float*>(dynamic_shared() + held_centroids) : in_memory, plan.stride,
         1},
        {memory.order + b * p.count, memory.anchors + b * p.count, memory.ends + b * p.clusters * kKMeansDistances},
        plan.holds_centroids ? held_centroids : -1,
        in_memory,
        to_integer,
        p.labels + b * p.count,
        memory.squared + b * p.count,
        memory.sums + b * p.clusters * width,
        memory.sizes + b * p.clusters,
        memory.moved + b * p.clusters,
        p.count,
        p.clusters};
    lloyd.begin(start, largest);
    const int32_t done = lloyd.solve(p.steps, p.tolerance);
    const double inertia = lloyd.inertia();
    for (int64_t i = team.rank * kProblemThreads + threadIdx.x; i < p.clusters * width;
         i += team.blocks * kProblemThreads)
        start[i] = lloyd.all_centroids[i / width][i % width] / lloyd.points.scale;
    if (team.rank == 0 && threadIdx.x == 0) {
        p.steps_done[b] = done;
        p.inertia[b] = inertia;
    }
    team.wait();  // others may still read this block's memory
}

}  // namespace

void kmeans(const KMeans& p, const KMeansMemory& memory, cudaStream_t stream) {
    if (p.problems == 0) return;
    const KMeansShape shape = {p.problems, p.count, p.clusters, p.width, kmeans_bytes(p.width)};
    const KMeansPlan plan = plan_on_device("kmeans", lloyd_kernel, shape);
    launch_in_clusters("kmeans", lloyd_kernel, p.problems * plan.blocks, 1, plan.blocks, kProblemThreads,
                       plan.shared_bytes, stream, p, memory, plan);
    sort_by_cluster({p.labels, p.rows, p.offsets, p.problems, p.count, p.clusters}, stream);
}

}  // namespace sopr::cuda
