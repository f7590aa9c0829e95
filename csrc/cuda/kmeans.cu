// Lloyd's algorithm, a cluster of blocks per problem, with the steps of csrc/cpu/kmeans.cpp. Sums of coordinates are
// integers, which atomics add in any order, so results do not depend on the number of blocks.
//
// kmeans_filter.h finds the few centroids that a point must be compared with.
#include "cuda/kernels_cuda.h"
#include "cuda/kmeans_filter.h"

namespace sopr::cuda {
namespace {

constexpr int kWords = kWarpSize * 4;  // of a warp

// A problem. It lies in shared memory: local memory of all threads does not fit into L1. Behind it lie words of the
// warps, the centre of kmeans_filter.h, and two numbers of each column.
struct alignas(16) Lloyd {
    Points points;
    Centroids centroids;    // of all blocks, in memory
    int held;               // where in shared memory a part of the centroids lies
    int32_t held_clusters;  // how many at once; 0 compares with centroids in memory
    int32_t* labels;        // (N)
    float* squared;         // (N), to the centroid of the label
    int64_t* sums;          // (K, D)
    int64_t* sizes;         // (K)
    double* moved;          // (K)
    int64_t count, clusters;

    __device__ static Lloyd& shared() { return *reinterpret_cast<Lloyd*>(dynamic_shared() + Team::kBytes); }
    __device__ static unsigned* words() {
        return reinterpret_cast<unsigned*>(&shared() + 1) + warp_of_thread() * kWords;
    }
    __device__ static float* centre() {
        return reinterpret_cast<float*>(reinterpret_cast<unsigned*>(&shared() + 1) + kProblemWarps * kWords);
    }
    // Powers of two that turn columns into integers, and bits of the largest magnitudes.
    __device__ float* to_integer() const { return centre() + FilterRows::centre_floats(points.width); }
    __device__ int* largest() const { return reinterpret_cast<int*>(to_integer() + points.width); }
    __host__ __device__ static int64_t bytes(int64_t width) {
        const int64_t columns = FilterRows::centre_floats(width) + (2 * width + 3) / 4 * 4;
        return Team::kBytes + int64_t(sizeof(Lloyd)) + (kProblemWarps * kWords + columns) * 4;
    }

    __device__ float* held_rows() const { return reinterpret_cast<float*>(dynamic_shared() + held); }
    __device__ FilterRows filter_rows(int32_t first) const {
        const int64_t left = clusters - first;
        return {held_rows() + held_clusters * kmeans_held_stride(points.width), centre(), int(points.width),
                int(left < held_clusters ? left : held_clusters)};
    }

    __device__ static void add(int64_t* to, int64_t value) {
        add_in_memory(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
    }

    // Visit the rows of this block.
    template <class Visit>
    __device__ void each_row(const Visit& visit) const {
        for (int64_t row = points.first + threadIdx.x; row < points.end; row += kProblemThreads) visit(row);
    }

    // Move the rows of lanes that want it from cluster `from`, if any, to `to`. All lanes of a warp must call it; they
    // share the columns of these rows: column(row, lane, d).
    template <class Column>
    __device__ void relabel(bool wanted, int64_t row, int32_t from, int32_t to, const Column& column) const {
        const unsigned those = __ballot_sync(kWholeWarp, wanted);
        if (those == 0) return;
        unsigned* lanes = words();
        __syncwarp();
        if (wanted) {
            labels[row] = to;
            add(sizes + to, 1);
            if (from >= 0) add(sizes + from, -1);
            lanes[__popc(those & ((1u << lane_of_thread()) - 1))] = unsigned(lane_of_thread());
        }
        __syncwarp();
        const unsigned width = unsigned(points.width), end = __popc(those) * width;
        for (unsigned begin = 0; begin < end; begin += kWarpSize) {
            const unsigned own = begin + lane_of_thread(), i = own < end ? own : end - 1, d = i % width;
            const int lane = int(lanes[i / width]);
            const int64_t its_row = __shfl_sync(kWholeWarp, row, lane);
            const int32_t its_from = __shfl_sync(kWholeWarp, from, lane), its_to = __shfl_sync(kWholeWarp, to, lane);
            if (own >= end) continue;
            const int64_t x = as_integer(column(its_row, lane, d), 1, to_integer()[d]);
            add(sums + its_to * int64_t(width) + d, x);
            if (its_from >= 0) add(sums + its_from * int64_t(width) + d, -x);
        }
    }

    // Label every point of this block with the nearest of the centroids that are held from `first` on, if one is nearer
    // than that of its label; run() returns how many of this thread's labels changed.
    struct Assign {
        int32_t first;
        template <int kFours>
        __device__ __noinline__ int64_t run() const {
            const Lloyd& all = shared();
            int64_t changed = 0;
            for (int64_t group = warp_of_thread(); group < all.points.groups(); group += kProblemWarps) {
                const int64_t row = all.points.row_of(group);
                const int32_t from = row < 0 ? 0 : all.labels[row];
                const Nearest own = all.nearest<kFours>(first, group, row, from);
                if (row >= 0) all.squared[row] = own.squared;
                const bool moves = row >= 0 && own.label != from;
                all.relabel(moves, row, from, own.label,
                            [&](int64_t its, int lane, int64_t d) { return Column{all.points, group, its, lane}(d); });
                changed += moves;
            }
            return changed;
        }
    };

    template <int kFours>
    __device__ Nearest nearest(int32_t first, int64_t group, int64_t row, int32_t from) const {
        Nearest own;
        const auto compare = [&](float distance, int32_t k) {
            COUNT_DISTANCES(1);
            own.compare(distance, k);
        };
        const auto by_filter = [&](const auto& filter, float from_centre, const auto& any, const auto& held) {
            const int32_t known = __shfl_sync(kWholeWarp, from, 0) < 0 ? first + filter.guess() : from;
            if (held_clusters < clusters)
                compare(any(known), known);
            else
                compare(held(known), known);
            filter.each_near(filter.at_most(from_centre, own.squared), known - first, words(),
                             [&](int k) { compare(held(first + k), first + k); });
        };
        if constexpr (kFours > 0) {
            constexpr int kStride = (kFours | 1) * 4;
            const auto distance = [&](const float* centroid) {  // reads the point anew: products take all registers
                return OnePoint<kFours>(points, group, row).distance(centroid);
            };
            by_filter(
                Filter<(kFours + 1) / 2>(filter_rows(first), points, group, row), distance(centre()),
                [&](int32_t k) { return distance(centroids[k]); },
                [&](int32_t k) { return distance(held_rows() + (k - first) * kStride); });
        } else {
            const Column x = {points, group, row, lane_of_thread()};
            const auto distance = [&](const float* centroid) {
                return squared_distance(points.width, x, [&](int64_t d) { return centroid[d]; });
            };
            const auto any = [&](int32_t k) { return distance(centroids[k]); };
            if (held_clusters > 0)
                by_filter(Filter<0>(filter_rows(first), points, group, row), distance(centre()), any, any);
            else
                for (int32_t k = 0; k < clusters; ++k) compare(any(k), k);
        }
        return own;
    }

    // Label every point with its nearest centroid; returns 0 if no label changed.
    __device__ int64_t assign(Team& team) const {
        if (held_clusters == 0) return team.sum(Assign{0}.run<0>());
        int64_t changed = 0;
        for (int64_t first = 0; first < clusters; first += held_clusters) {
            hold(first);
            changed += by_width(points.width, Assign{int32_t(first)});
        }
        return team.sum(changed);
    }

    // Hold centroids from `first` on, which all blocks have written; they have waited for each other.
    __device__ void hold(int64_t first) const {
        const FilterRows filter = filter_rows(int32_t(first));
        const int64_t stride = kmeans_held_stride(points.width);
        const float4* from = reinterpret_cast<const float4*>(centroids[first]);
        __syncthreads();
        for (int64_t i = threadIdx.x; i < filter.clusters * stride / 4; i += kProblemThreads)
            reinterpret_cast<float4*>(held_rows())[i] = from[i];
        __syncthreads();
        filter.write({stride > 0 ? held_rows() : centroids[first], centroids.stride});
        __syncthreads();
    }

    // Scale everything, without labels yet.
    __device__ void begin(Team& team, const float* start) {
        const int64_t width = points.width, mine = team.rank * kProblemThreads + threadIdx.x;
        const int64_t threads = team.blocks * kProblemThreads;
        for (int64_t d = threadIdx.x; d < width; d += kProblemThreads) largest()[d] = 0;
        __syncthreads();
        unsigned of_all = 0;
        for (int64_t d = 0; d < width; ++d) {
            unsigned bits = 0;
            each_row([&](int64_t row) {
                const unsigned own = magnitude_bits(points.raw[row * width + d]);
                if (own > bits) bits = own;
            });
            bits = __reduce_max_sync(kWholeWarp, bits);
            if (lane_of_thread() == 0) atomicMax(largest() + d, int(bits));
            if (bits > of_all) of_all = bits;
        }
        const float of_points = __uint_as_float(team.largest(of_all));
        const float scale = scale_of(fmaxf(of_points, largest_magnitude(team, start, clusters * width)));
        if (threadIdx.x == 0) points.scale = scale;
        for (int64_t d = threadIdx.x; d < width; d += kProblemThreads) {
            int bits = 0;
            for (unsigned block = 0; block < team.blocks; ++block) {
                const int other = *shared_of_block(largest() + d, block);
                if (other > bits) bits = other;
            }
            to_integer()[d] = integer_scale_of(__uint_as_float(unsigned(bits)) * scale, count);
        }
        for (int64_t i = mine; i < clusters * centroids.stride; i += threads) {
            const int64_t k = i / centroids.stride, d = i % centroids.stride;
            centroids.rows[i] = d < width ? start[k * width + d] * scale : 0;
        }
        for (int64_t i = mine; i < clusters * width; i += threads) sums[i] = 0;
        for (int64_t k = mine; k < clusters; k += threads) sizes[k] = 0;
        each_row([&](int64_t row) { labels[row] = -1; });
        __syncthreads();
        points.hold();
        team.wait();
        filter_rows(0).choose_centre(centroids, clusters);
    }

    __device__ int64_t first_empty(const Team& team) const {
        int64_t first = clusters;
        for (int64_t k = threadIdx.x; k < clusters; k += kProblemThreads)
            if (sizes[k] == 0 && k < first) first = k;
        return team.of_block(first, [](int64_t a, int64_t b) { return a < b ? a : b; });
    }

    // The row with the largest finite distance, ties to the first; -1 if every point lies on a centroid.
    __device__ int64_t farthest(Team& team) const {
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
    __device__ __noinline__ bool fill_empty(Team& team) const {
        for (bool filled = false;; filled = true) {
            const int64_t k = first_empty(team);
            if (k == clusters) return filled;
            const int64_t chosen = farthest(team);
            if (chosen < 0) return filled;
            float* centroid = centroids[k];
            if (team.rank == 0)
                for (int64_t d = threadIdx.x; d < points.width; d += kProblemThreads)
                    centroid[d] = points.scaled(chosen, d);
            team.wait();
            for (int64_t base = points.first + warp_of_thread() * kWarpSize; base < points.end;
                 base += kProblemThreads) {
                const int64_t row = base + lane_of_thread();
                int32_t from = 0;
                bool nearer = false;
                if (row < points.end) {
                    from = labels[row];
                    const float distance = squared_distance(
                        points.width, [&](int64_t d) { return points.scaled(row, d); },
                        [&](int64_t d) { return centroid[d]; });
                    nearer = distance < squared[row] || (distance == squared[row] && from >= k);
                    if (nearer) squared[row] = distance;
                }
                relabel(nearer, row, from, int32_t(k),
                        [&](int64_t its, int, int64_t d) { return points.scaled(its, d); });
            }
            team.wait();
        }
    }

    __device__ static double sum_of_warp(double x) {  // the order of sum_of_lanes()
        for (int step = kWarpSize / 2; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
        return x;
    }

    // Move every centroid to the mean of its points; returns the sum of squared moves. Each warp moves whole centroids.
    __device__ __noinline__ double move_centroids(const Team& team) const {
        const int64_t width = points.width, lane = lane_of_thread();
        for (int64_t k = team.rank * kProblemWarps + warp_of_thread(); k < clusters; k += team.blocks * kProblemWarps) {
            const int64_t size = sizes[k];
            double of_cluster = 0;
            for (int64_t d = lane; d < width; d += kWarpSize) {
                float place = centroids[k][d];
                if (size > 0) {
                    const double mean = double(sums[k * width + d]) / double(size) / double(to_integer()[d]);
                    const double move = double(float(mean)) - double(place);
                    of_cluster = fma(move, move, of_cluster);
                    place = float(mean);
                }
                centroids[k][d] = place;
            }
            of_cluster = sum_of_warp(of_cluster);
            if (lane == 0) moved[k] = of_cluster;
        }
        team.wait();
        double sum = 0;
        for (int64_t k = lane; k < clusters; k += kWarpSize) sum += moved[k];
        return sum_of_warp(sum);
    }

    // Mean variance of the columns, by which scikit-learn scales its tolerance too.
    __device__ __noinline__ double mean_variance(Team& team) const {
        const VarianceUnit unit(count);
        const int64_t width = points.width;
        double variance = 0;
        for (int64_t d = 0; d < width; ++d) {
            int64_t sum = 0, squares = 0;
            for (int64_t k = threadIdx.x; k < clusters; k += kProblemThreads) sum += sums[k * width + d];
            sum = team.of_block(sum, [](int64_t a, int64_t b) { return a + b; });
            const double mean = double(sum) / (double(count) * double(to_integer()[d]));
            each_row(
                [&](int64_t row) { squares += unit.square(double(points.scaled(row, d)) - mean, to_integer()[d]); });
            variance += unit.variance(team.sum(squares), to_integer()[d], count);
        }
        return variance / double(width);
    }

    __device__ int32_t solve(Team& team, int64_t steps, double tolerance) {
        double allowed = 0;
        int32_t done = 0;
        while (done < steps) {
            ++done;
            const int64_t changed = assign(team);
            if (!fill_empty(team) && changed == 0) return done;
            if (done == 1 && tolerance > 0) allowed = tolerance * mean_variance(team);
            if (move_centroids(team) <= allowed) break;
        }
        assign(team);
        fill_empty(team);
        return done;
    }

    __device__ double inertia(Team& team) const {
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
    const int held = int(Lloyd::bytes(width)), held_points = held + int(plan.parts * kmeans_part_bytes(width));
    const int64_t first = team.rank * plan.share, end = first + plan.share < p.count ? first + plan.share : p.count;
    float* start = p.centroids + b * p.clusters * width;
    Lloyd& lloyd = Lloyd::shared();
    if (threadIdx.x == 0)
        lloyd = {{p.points + b * p.count * width, plan.holds_points ? held_points : -1, nullptr, first, end, width, 1},
                 {memory.centroids + b * p.clusters * plan.stride, plan.stride},
                 held,
                 int32_t(plan.parts * kPart),
                 p.labels + b * p.count,
                 memory.squared + b * p.count,
                 memory.sums + b * p.clusters * width,
                 memory.sizes + b * p.clusters,
                 memory.moved + b * p.clusters,
                 p.count,
                 p.clusters};
    __syncthreads();
    lloyd.begin(team, start);
    const int32_t done = lloyd.solve(team, p.steps, p.tolerance);
    const double inertia = lloyd.inertia(team);
    for (int64_t i = team.rank * kProblemThreads + threadIdx.x; i < p.clusters * width;
         i += team.blocks * kProblemThreads)
        start[i] = lloyd.centroids[i / width][i % width] / lloyd.points.scale;
    if (team.rank == 0 && threadIdx.x == 0) {
        p.steps_done[b] = done;
        p.inertia[b] = inertia;
    }
    team.wait();  // others may still read this block's memory
}

}  // namespace

KMeansShape shape_of_kmeans(int64_t problems, int64_t count, int64_t clusters, int64_t width) {
    return {problems,
            count,
            clusters,
            width,
            Lloyd::bytes(width),
            width * 4,
            (clusters + kPart - 1) / kPart,
            kmeans_part_bytes(width)};
}

void kmeans(const KMeans& p, const KMeansMemory& memory, cudaStream_t stream) {
    if (p.problems == 0) return;
    const KMeansPlan plan =
        plan_on_device("kmeans", lloyd_kernel, shape_of_kmeans(p.problems, p.count, p.clusters, p.width));
    launch_in_clusters("kmeans", lloyd_kernel, p.problems * plan.blocks, 1, plan.blocks, kProblemThreads,
                       plan.shared_bytes, stream, p, memory, plan);
    sort_by_cluster({p.labels, p.rows, p.offsets, p.problems, p.count, p.clusters}, stream);
}

}  // namespace sopr::cuda
