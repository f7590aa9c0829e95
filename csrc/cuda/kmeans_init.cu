// Initial centroids of k-means, a cluster of blocks per problem. Draws and integer weights are those of
// csrc/cpu/kmeans_init.cpp, so the rows are too.
//
// A candidate c changes nothing for a point x if |a - c| > |x - a| + |x - its centre| for some centre a, the anchor of
// x. Points are grouped by their nearest centre at rounds 8, 16, 32, …, so that a warp's points skip the same
// candidates.
#include "cuda/kernels_cuda.h"
#include "cuda/kmeans_groups.h"
#include "cuda/kmeans_points.h"

namespace sopr::cuda {
namespace {

constexpr int64_t kBin = kKMeansBin;
constexpr int kTogether = 8;  // candidates measured together
using Weight = unsigned long long;

// The first i in begin : end at which the cumulative sum of value(i) passes the target; subtracts the sum before i from
// the target. All lanes of a warp must call it; each sums a part of begin : end.
template <class Value>
__device__ int64_t first_above(int64_t begin, int64_t end, Weight& target, const Value& value) {
    const int lane = lane_of_thread();
    const int64_t each = (end - begin + kWarpSize - 1) / kWarpSize;
    const int64_t own_begin = begin + lane * each, own_end = own_begin + each < end ? own_begin + each : end;
    Weight own = 0;
    for (int64_t i = own_begin; i < own_end; ++i) own += value(i);
    Weight sum = own;
    for (int step = 1; step < kWarpSize; step *= 2) {
        const Weight before = __shfl_up_sync(kWholeWarp, sum, step);
        if (lane >= step) sum += before;
    }
    const unsigned passed = __ballot_sync(kWholeWarp, sum > target);
    const int first = passed ? __ffs(int(passed)) - 1 : kWarpSize - 1;
    Weight left = target - (sum - own);
    int64_t found = end - 1;
    if (lane == first)
        for (int64_t i = own_begin; i < own_end; ++i) {
            const Weight weight = value(i);
            found = i;
            if (weight > left || i + 1 == own_end) break;
            left -= weight;
        }
    target = __shfl_sync(kWholeWarp, left, first);
    return __shfl_sync(kWholeWarp, found, first);
}

// What the blocks of a problem share in a round lies in each one's shared memory.
struct Round {
    int32_t drawn[kMaxCandidates];                // rows
    Weight parts[kProblemWarps][kMaxCandidates];  // of the gains
    Weight gains[2][kMaxCandidates];              // of this block, by turns, as in Team
};

// What a round reads of a row.
struct alignas(16) State {
    float squared;  // to the nearest centre
    float radius;   // distance to the anchor
    int32_t row, anchor;
};

// A problem. It lies in shared memory: local memory of all threads does not fit into L1.
struct alignas(16) PlusPlus {
    Points points;
    Grouping grouping;
    int held_centres;  // where in shared memory (K, stride) scaled centres lie; -1: nothing is skipped
    int32_t* labels;   // (N), the nearest centre
    float* squared;    // (N), to it
    State* in_memory;  // (N), by position, unless states are held
    int held_states;   // where in shared memory those of this block lie, -1: nowhere
    Weight* weights;   // (bins), sums over kBin rows
    int64_t count, clusters, stride, number;  // of candidates
    float to_weight = 1;
    int64_t anchors = 0;

    // In shared memory: PlusPlus, Round, candidates (number, stride) unless points are wide, and, where centres are
    // held, these and the squared distances of anchors to candidates (anchors, number).
    __device__ static PlusPlus* shared() { return reinterpret_cast<PlusPlus*>(dynamic_shared() + Team::kBytes); }
    __device__ static Round& round() { return *reinterpret_cast<Round*>(shared() + 1); }
    __device__ static float* candidates() { return reinterpret_cast<float*>(&round() + 1); }
    __device__ float* centres() const { return reinterpret_cast<float*>(dynamic_shared() + held_centres); }
    __device__ State* states() const {
        return held_states < 0 ? in_memory + points.first : reinterpret_cast<State*>(dynamic_shared() + held_states);
    }
    __device__ float* apart() const { return centres() + clusters * stride; }

    __device__ Weight weight_of(float x) const { return Weight(int64_t(x * to_weight)); }

    // Column d of a candidate.
    __device__ float candidate(int64_t c, int64_t d) const {
        return points.width > kMostColumns ? points.scaled(round().drawn[c], d) : candidates()[c * stride + d];
    }

    template <int kFours>
    __device__ float distance(const OnePoint<kFours>& x, int64_t c) const {
        return x.distance(candidates() + c * stride);
    }
    __device__ float distance(const Column& x, int64_t c) const {
        return squared_distance(points.width, x, [&](int64_t d) { return candidate(c, d); });
    }

    // Load `number` drawn rows, and measure how far they are from the anchors.
    __device__ void load(int64_t drawn) const {
        __syncthreads();
        if (points.width <= kMostColumns)
            for (int64_t i = threadIdx.x; i < drawn * points.width; i += kProblemThreads) {
                const int64_t c = i / points.width, d = i % points.width;
                candidates()[c * stride + d] = points.scaled(round().drawn[c], d);
            }
        __syncthreads();
        for (int64_t i = threadIdx.x; i < anchors * drawn; i += kProblemThreads) {
            const int64_t a = i % anchors, c = i / anchors;
            apart()[a * number + c] = squared_distance(
                points.width, [&](int64_t d) { return centres()[a * stride + d]; },
                [&](int64_t d) { return candidate(c, d); });
        }
        __syncthreads();
    }

    // The squared distance from its anchor beyond which a candidate changes nothing for a row.
    __device__ float reach(const State& state) const {
        const float both = state.radius + sqrtf(state.squared);
        return with_rounding_margin(both * both, points.width);
    }

    // Visit the groups of this block: visit(group, row, its squared distance, the candidates that may change it as
    // bits).
    template <class Visit>
    __device__ void each_group(int64_t begin, int64_t end, const Visit& visit) const {
        for (int64_t group = warp_of_thread(); group < points.groups(); group += kProblemWarps) {
            const int64_t place = group * kWarpSize + lane_of_thread();
            const State state = points.first + place < points.end ? states()[place] : State{0, 0, -1, 0};
            unsigned near = (1u << (end - begin)) - 1;
            if (anchors > 0) {
                const float within = reach(state), *from = apart() + state.anchor * number;
                near = 0;
                for (int64_t c = begin; c < end; ++c)
                    near |= unsigned(__ballot_sync(kWholeWarp, state.row >= 0 && !(from[c] > within)) != 0)
                            << (c - begin);
            }
            if (near) visit(group, state.row, state.squared, near);
        }
    }

    template <int kFours>
    __device__ auto point(int64_t group, int64_t row) const {
        if constexpr (kFours == 0)
            return Column{points, group, row, lane_of_thread()};
        else
            return OnePoint<kFours>(points, group, row);
    }

    // The gains of candidates, by how much each would reduce the weights, to Round.
    struct Measure {
        template <int kFours>
        __device__ __noinline__ int run() const {
            const PlusPlus all = *shared();  // in registers
            for (int64_t begin = 0; begin < all.number; begin += kTogether) {
                const int64_t end = begin + kTogether < all.number ? begin + kTogether : all.number;
                Weight gains[kTogether] = {};
                all.each_group(begin, end, [&](int64_t group, int64_t row, float now, unsigned near) {
                    const auto x = all.point<kFours>(group, row);
#pragma unroll
                    for (int c = 0; c < kTogether; ++c) {
                        if (!(near >> c & 1)) continue;
                        COUNT_DISTANCES(1);
                        const float to = all.distance(x, begin + c);
                        if (row >= 0 && to <= now) gains[c] += all.weight_of(now) - all.weight_of(to);
                    }
                });
#pragma unroll
                for (int c = 0; c < kTogether; ++c) {
                    if (begin + c >= end) break;
                    for (int step = kWarpSize / 2; step > 0; step /= 2)
                        gains[c] += __shfl_xor_sync(kWholeWarp, gains[c], step);
                    if (lane_of_thread() == 0) all.round().parts[warp_of_thread()][begin + c] = gains[c];
                }
            }
            return 0;
        }
    };

    // Make candidate `chosen` the centre `number`; run() returns by how much it reduces the weights of this thread.
    struct Add {
        int64_t chosen, number;
        bool first;
        template <int kFours>
        __device__ __noinline__ Weight run() const {
            const PlusPlus all = *shared();
            Weight reduction = 0;
            all.each_group(chosen, chosen + 1, [&](int64_t group, int64_t row, float now, unsigned) {
                const auto x = all.point<kFours>(group, row);
                COUNT_DISTANCES(1);
                const float to = all.distance(x, chosen);
                if (row < 0 || !(first || to <= now)) return;
                all.squared[row] = all.states()[group * kWarpSize + lane_of_thread()].squared = to;
                all.labels[row] = int32_t(number);
                if (first) return;
                const Weight less = all.weight_of(now) - all.weight_of(to);
                if (less == 0) return;
                add_in_memory(all.weights + row / kBin, 0 - less);
                reduction += less;
            });
            return reduction;
        }
    };

    __device__ Weight add_centre(Team& team, int64_t chosen, int64_t centre, bool first) const {
        if (held_centres >= 0)
            for (int64_t d = threadIdx.x; d < points.width; d += kProblemThreads)
                centres()[centre * stride + d] = candidate(chosen, d);
        return team.sum(by_width(points.width, Add{chosen, centre, first}));
    }

    // The candidate that reduces the weights most, ties to the first.
    __device__ int64_t best(const Team& team, unsigned turn) const {
        by_width(points.width, Measure{});
        __syncthreads();
        Weight* gains = round().gains[turn];
        for (int64_t c = threadIdx.x; c < number; c += kProblemThreads) {
            Weight gain = 0;
            for (int warp = 0; warp < kProblemWarps; ++warp) gain += round().parts[warp][c];
            gains[c] = gain;
        }
        team.wait();
        Weight gain = 0;
        int64_t chosen = lane_of_thread();
        if (chosen < number)
            for (unsigned block = 0; block < team.blocks; ++block) gain += shared_of_block(gains, block)[chosen];
        for (int step = kWarpSize / 2; step > 0; step /= 2) {
            const Weight other = __shfl_xor_sync(kWholeWarp, gain, step);
            const int64_t its = __shfl_xor_sync(kWholeWarp, chosen, step);
            if (other > gain || (other == gain && its < chosen)) {
                gain = other;
                chosen = its;
            }
        }
        return chosen;
    }

    // Compute all weights in a unit that uses 62 bits for their sum, however small the distances are; returns the sum.
    __device__ __noinline__ Weight weigh(Team& team) {
        unsigned bits = 0;
        for (int64_t row = points.first + threadIdx.x; row < points.end; row += kProblemThreads) {
            const unsigned own = magnitude_bits(squared[row]);
            if (own > bits) bits = own;
        }
        bits = team.largest(bits);
        if (threadIdx.x == 0) to_weight = integer_scale_of(__uint_as_float(bits), count);
        __syncthreads();
        Weight total = 0;
        for (int64_t begin = points.first + warp_of_thread() * kBin; begin < points.end;
             begin += kProblemWarps * kBin) {
            Weight sum = 0;
            for (int64_t row = begin + lane_of_thread(); row < begin + kBin && row < points.end; row += kWarpSize)
                sum += weight_of(squared[row]);
            for (int step = kWarpSize / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
            if (lane_of_thread() != 0) continue;
            weights[begin / kBin] = sum;
            total += sum;
        }
        return team.sum(total);
    }

    // Group the points by the nearest of `centres_now` centres, which become the anchors.
    __device__ __noinline__ void group(Team& team, int64_t centres_now) {
        grouping.group(team, points.first, points.end, centres_now, labels, squared);
        if (threadIdx.x == 0) {
            points.order = grouping.order;
            anchors = centres_now;
        }
        __syncthreads();
        points.hold();
        for (int64_t i = points.first + threadIdx.x; i < points.end; i += kProblemThreads) {
            const int32_t row = grouping.order[i];
            states()[i - points.first] = {squared[row], sqrtf(squared[row]), row, grouping.anchors[i]};
        }
        team.wait();
    }

    // The row at which the cumulative sum of weights passes the target.
    __device__ int32_t sample(Weight target) const {
        const int64_t bins = (count + kBin - 1) / kBin;
        const int64_t bin = first_above(0, bins, target, [&](int64_t i) { return weights[i]; });
        const int64_t end = (bin + 1) * kBin < count ? (bin + 1) * kBin : count;
        return int32_t(first_above(bin * kBin, end, target, [&](int64_t row) { return weight_of(squared[row]); }));
    }

    __device__ void choose(Team& team, const ClusteringDraw& draw, int32_t* rows) {
        const int32_t start = int32_t(draw(uint64_t(count), 0, 0));
        const auto write = [&](int64_t k, int32_t row) {
            if (team.rank == 0 && threadIdx.x == 0) rows[k] = row;
        };
        if (threadIdx.x == 0) round().drawn[0] = start;
        write(0, start);
        points.hold();
        for (int64_t i = points.first + threadIdx.x; i < points.end; i += kProblemThreads)
            states()[i - points.first] = {0, 0, int32_t(i), 0};
        load(1);
        add_centre(team, 0, 0, true);
        Weight total = weigh(team);
        int64_t next_group = 8;
        for (int64_t k = 1; k < clusters; ++k) {
            if (total >> 36 < Weight(count)) total = weigh(team);
            if (total == 0) {
                for (; k < clusters; ++k) write(k, start);
                break;
            }
            if (held_centres >= 0 && k == next_group && k * (kWarpSize / 2) <= count) {
                group(team, k);
                next_group *= 2;
            }
            for (int64_t c = warp_of_thread(); c < number; c += kProblemWarps) {
                const int32_t row = sample(draw(total, k, c));
                if (lane_of_thread() == 0) round().drawn[c] = row;
            }
            load(number);
            const int64_t chosen = best(team, unsigned(k % 2));
            write(k, round().drawn[chosen]);
            total -= add_centre(team, chosen, k, false);
        }
    }
};

// Bytes of shared memory next to centres and points.
__host__ __device__ inline int64_t init_bytes(int64_t width, int candidates) {
    return Team::kBytes + sizeof(PlusPlus) + sizeof(Round) +
           (width > kMostColumns ? 0 : candidates * kmeans_stride(width) * 4);
}

__global__ void __launch_bounds__(kProblemThreads)
    plus_plus_kernel(KMeansInit p, KMeansInitMemory memory, int candidates, KMeansPlan plan) {
    Team team(dynamic_shared());
    const int64_t b = team.problem(), width = p.width;
    const int held_centres = int(init_bytes(width, candidates));
    const int64_t of_centre = plan.stride + (candidates + 3) / 4 * 4;
    const int held_points = held_centres + (plan.parts > 0 ? int(p.clusters * of_centre * 4) : 0);
    const int64_t first = team.rank * plan.share, end = first + plan.share < p.count ? first + plan.share : p.count;
    const float* raw = p.points + b * p.count * width;
    const float scale = scale_of(largest_magnitude(team, raw, p.count * width));
    PlusPlus* problem = PlusPlus::shared();
    if (threadIdx.x == 0)
        *problem = {
            {raw, plan.holds_points ? held_points : -1, nullptr, first, end, width, scale},
            {memory.order + b * p.count, memory.anchors + b * p.count, memory.ends + b * p.clusters * kKMeansDistances},
            plan.parts > 0 ? held_centres : -1,
            memory.labels + b * p.count,
            memory.squared + b * p.count,
            static_cast<State*>(memory.states) + b * p.count,
            plan.holds_points ? held_points + int(plan.share * width * 4) : -1,
            reinterpret_cast<Weight*>(memory.weights) + b * ((p.count + kBin - 1) / kBin),
            p.count,
            p.clusters,
            plan.stride,
            candidates};
    __syncthreads();
    problem->choose(team, {p.seeds[b]}, p.rows + b * p.clusters);
    team.wait();  // others may still read this block's memory
}

}  // namespace

void kmeans_init(const KMeansInit& p, const KMeansInitMemory& memory, cudaStream_t stream) {
    if (p.problems == 0) return;
    const int candidates = candidates_of(p.clusters);
    const KMeansShape shape = {p.problems,
                               p.count,
                               p.clusters,
                               p.width,
                               init_bytes(p.width, candidates),
                               p.width * 4 + int64_t(sizeof(State)),
                               1,
                               p.clusters * (kmeans_stride(p.width) + (candidates + 3) / 4 * 4) * 4};
    const KMeansPlan plan = plan_on_device("kmeans_init", plus_plus_kernel, shape);
    launch_in_clusters("kmeans_init", plus_plus_kernel, p.problems * plan.blocks, 1, plan.blocks, kProblemThreads,
                       plan.shared_bytes, stream, p, memory, candidates, plan);
}

}  // namespace sopr::cuda
