// Initial centroids of k-means: greedy k-means++.
//
// Greedy k-means++ (Arthur & Vassilvitskii 2007): each round draws candidates among the points, with probability
// proportional to their squared distance to the nearest centre, and keeps the one that reduces the sum most.
//
// Weights of points are these squared distances as integers, so sums do not depend on their order. Candidates skip
// blocks of points that are too far away, as in kmeans_nearby.h.
#include "cpu/kernel_table.h"
#include "cpu/kmeans_groups.h"
#include "cpu/kmeans_nearby.h"

namespace sopr::SOPR_LEVEL {
namespace {

// One problem.
struct PlusPlus {
    PlusPlus(const KMeansInit& p, int workers, Arena& memory)
        : groups(p.count, p.width, p.clusters, memory),
          count(p.count),
          width(p.width),
          clusters(p.clusters),
          bins(ceil_div(p.count, kBin)),
          shares(workers) {
        centres = memory.take<float>((clusters + kAnchors) * width);
        candidates = memory.take<float>(kMaxCandidates * width);
        packed_candidates = memory.take<float>(kMaxCandidates * width);
        from_anchors = memory.take<float>((clusters + kAnchors) * kMaxCandidates + kLanes);
        squared = memory.take<float>(count);
        radii = memory.take<float>(groups.most_blocks());
        reaches = memory.take<float>(groups.most_blocks());
        weights = memory.take<uint64_t>(bins);
        gains = memory.take<uint64_t>(shares * kMaxCandidates);
    }

    // rows = the chosen points.
    void choose(const float* raw_points, const ClusteringDraw& draw, int32_t* rows, int inner_threads);

  private:
    static constexpr int64_t kBin = 128;

    Groups groups;  // labels number the centres
    int64_t count, width, clusters, bins, shares;
    const float* points;       // (N, D), not scaled
    float* centres;            // (K + kAnchors, D), scaled like everything below
    float* candidates;         // (candidates, D)
    float* packed_candidates;  // (blocks of candidates, D, kLanes)
    float* from_anchors;       // (K + kAnchors, kMaxCandidates), squared distances from anchors to candidates
    float* squared;            // (N), to the nearest centre
    float* radii;              // (blocks), largest distance of a block's points to their anchor
    float* reaches;            // (blocks), squared distance from the anchor beyond which a candidate changes nothing
    uint64_t* weights;         // (bins), sums of weights over kBin rows
    uint64_t* gains;           // (shares, kMaxCandidates), by how much a candidate reduces the weights
    uint64_t total;
    float scale, to_weight;
    int64_t anchors;
    int threads;

    uint64_t weight_of(float x) const { return uint64_t(int64_t(x * to_weight)); }
    void load_row(int64_t row, float* to) const;
    void start(int64_t row);
    void group(int64_t round);
    void set_reach(int64_t block);
    void weigh();
    int64_t sample(uint64_t target) const;
    int best_of(int64_t number);
    template <class Visit>
    void for_nearer(int64_t chunk, int64_t first, int64_t number, Visit&& visit) const;
    void add_centre(int64_t candidate, int64_t round);
};

void PlusPlus::load_row(int64_t row, float* to) const {
    for (int64_t d = 0; d < width; ++d) to[d] = points[row * width + d] * scale;
}

void PlusPlus::set_reach(int64_t block) {
    const float nearest = largest(load(groups.squared + block * kLanes));
    const float both = radii[block] + __builtin_sqrtf(nearest);
    reaches[block] = with_rounding_margin(both * both, width);
}

// Make a row the first centre and the anchor of every block.
void PlusPlus::start(int64_t row) {
    load_row(row, centres);
    groups.fill(points, scale, threads);
    for (int64_t block = 0; block < groups.blocks; ++block) {
        Float to[1];
        distances<1>(groups.packed + block * width * kLanes, centres, width, to);
        groups.anchors[block] = 0;
        store(groups.squared + block * kLanes, to[0]);
        store(groups.labels + block * kLanes, Int{});
        radii[block] = __builtin_sqrtf(largest(to[0]));
        set_reach(block);
    }
    for (int64_t row = 0; row < count; ++row) squared[row] = groups.squared[row];
    anchors = 1;
    weigh();
}

// Regroup by the nearest of the first `round` centres, which become the anchors.
void PlusPlus::group(int64_t round) {
    groups.group(points, scale, threads);
    for (int64_t i = 0; i < groups.positions(); ++i) groups.squared[i] = squared[groups.row_at(i)];
    for (int64_t block = 0; block < groups.blocks; ++block) {
        radii[block] = __builtin_sqrtf(largest(load(groups.squared + block * kLanes)));
        set_reach(block);
    }
    anchors = round;
}

// Recompute the weights in a unit that uses 62 bits for their sum, however small the distances are.
void PlusPlus::weigh() {
    to_weight = integer_scale_of(largest_magnitude(squared, count), count);
    total = 0;
    for (int64_t bin = 0; bin < bins; ++bin) {
        const int64_t end = min((bin + 1) * kBin, count);
        int64_t sum = 0;
        for (int64_t row = bin * kBin; row < end; ++row) sum += int64_t(squared[row] * to_weight);
        weights[bin] = uint64_t(sum);
        total += uint64_t(sum);
    }
}

// The row at which the cumulative sum of weights passes the target.
int64_t PlusPlus::sample(uint64_t target) const {
    int64_t bin = 0;
    for (; target >= weights[bin]; ++bin) target -= weights[bin];
    int64_t row = bin * kBin;
    for (; target >= weight_of(squared[row]); ++row) target -= weight_of(squared[row]);
    return row;
}

// visit(block, candidate, squared distances, lanes) for blocks of a chunk and candidates first : first + number, where
// `lanes` are the points of the block that are nearer to the candidate than to their centre. Three passes (pairs within
// reach, their distances, the nearer ones) keep branches predictable.
template <class Visit>
void PlusPlus::for_nearer(int64_t chunk, int64_t first, int64_t number, Visit&& visit) const {
    constexpr int64_t kPairs = Groups::kChunkBlocks * kMaxCandidates;
    struct Nearer {
        int32_t pair;
        uint32_t lanes;
    };
    int32_t pairs[kPairs + kLanes];
    Nearer nearer[kPairs + 1];
    float to[kPairs * kLanes];
    const int64_t begin = chunk * Groups::kChunkBlocks;
    const int64_t end = min(begin + Groups::kChunkBlocks, groups.blocks);

    int64_t pair_count = 0, nearer_count = 0;
    for (int64_t block = begin; block < end; ++block) {
        const float* from = from_anchors + groups.anchors[block] * kMaxCandidates + first;
        const int32_t base = int32_t((block - begin) * kMaxCandidates + first);
        pair_count += indices_within(reaches[block], from, number, base, pairs + pair_count);
    }
    for (int64_t i = 0; i < pair_count; ++i) {
        const int64_t block = begin + pairs[i] / kMaxCandidates, candidate = pairs[i] % kMaxCandidates;
        Float squared[1];
        distances<1>(groups.packed + block * width * kLanes, candidates + candidate * width, width, squared);
        store(to + i * kLanes, squared[0]);
        nearer[nearer_count] = {int32_t(i), lanes_below_or_equal(squared[0], load(groups.squared + block * kLanes))};
        nearer_count += nearer[nearer_count].lanes != 0;
    }
    for (int64_t i = 0; i < nearer_count; ++i) {
        const int32_t pair = pairs[nearer[i].pair];
        visit(begin + pair / kMaxCandidates, pair % kMaxCandidates, to + nearer[i].pair * kLanes, nearer[i].lanes);
    }
}

// The candidate that reduces the weights most, ties to the first.
int PlusPlus::best_of(int64_t number) {
    pack(candidates, number, width, 1, packed_candidates);
    for (int64_t a = 0; a < anchors; a += kAnchors)
        for (int64_t first = 0; first < number; first += kLanes) {
            Float to[kAnchors];
            distances<kAnchors>(packed_candidates + first * width, centres + a * width, width, to);
            for (int i = 0; i < kAnchors; ++i) store(from_anchors + (a + i) * kMaxCandidates + first, to[i]);
        }
    for (int64_t i = 0; i < shares * kMaxCandidates; ++i) gains[i] = 0;
    parallel_for(groups.chunks(), threads, [&](int64_t chunk, int worker) {
        uint64_t* gain = gains + worker * kMaxCandidates;
        for_nearer(chunk, 0, number, [&](int64_t block, int64_t candidate, const float* to, uint32_t lanes) {
            for (; lanes; lanes &= lanes - 1) {
                const int lane = __builtin_ctz(lanes);
                const int64_t position = block * kLanes + lane;
                if (groups.rows[position] >= 0)
                    gain[candidate] += weight_of(groups.squared[position]) - weight_of(to[lane]);
            }
        });
    });
    int best = 0;
    for (int64_t c = 0; c < number; ++c) {
        for (int64_t share = 1; share < shares; ++share) gains[c] += gains[share * kMaxCandidates + c];
        if (gains[c] > gains[best]) best = int(c);
    }
    return best;
}

void PlusPlus::add_centre(int64_t candidate, int64_t round) {
    float* centre = centres + round * width;
    for (int64_t d = 0; d < width; ++d) centre[d] = candidates[candidate * width + d];
    for (int64_t chunk = groups.chunks() - 1; chunk >= 0; --chunk)  // the last chunks are still in cache
        for_nearer(chunk, candidate, 1, [&](int64_t block, int64_t, const float* to, uint32_t lanes) {
            for (; lanes; lanes &= lanes - 1) {
                const int lane = __builtin_ctz(lanes);
                const int64_t position = block * kLanes + lane, row = groups.rows[position];
                if (row >= 0) {
                    const uint64_t reduction = weight_of(squared[row]) - weight_of(to[lane]);
                    squared[row] = to[lane];
                    weights[row / kBin] -= reduction;
                    total -= reduction;
                }
                groups.squared[position] = to[lane];
                groups.labels[position] = int32_t(round);
            }
            set_reach(block);
        });
}

void PlusPlus::choose(const float* raw_points, const ClusteringDraw& draw, int32_t* rows, int inner_threads) {
    points = raw_points;
    threads = inner_threads;
    scale = scale_of(largest_magnitude(points, count * width));
    for (int64_t i = 0; i < (clusters + kAnchors) * width; ++i) centres[i] = 0;
    rows[0] = int32_t(draw(uint64_t(count), 0, 0));
    start(rows[0]);
    if (cancelled()) return;

    const int64_t number = candidates_of(clusters);
    int64_t next_group = 8;
    for (int64_t round = 1; round < clusters; ++round) {
        if (total >> 36 < uint64_t(count)) weigh();
        if (total == 0) {
            for (; round < clusters; ++round) rows[round] = rows[0];
            return;
        }
        if (round == next_group && round * kLanes <= count) {
            group(round);
            next_group *= 2;
        }
        if (cancelled()) return;
        int32_t drawn[kMaxCandidates];
        for (int64_t c = 0; c < number; ++c) {
            drawn[c] = int32_t(sample(draw(total, round, c)));
            load_row(drawn[c], candidates + c * width);
        }
        const int best = best_of(number);
        if (cancelled()) return;
        add_centre(best, round);
        rows[round] = drawn[best];
    }
}

}  // namespace

void kmeans_init(const KMeansInit& p, int threads) {
    Arena measure;
    PlusPlus(p, threads, measure);
    const WorkerMemory scratch(measure.bytes(), problems_at_a_time(p.problems, threads));
    for_problems(p.problems, threads, [&](int64_t b, int worker, int inner_threads) {
        Arena memory = scratch.arena(worker);
        PlusPlus(p, inner_threads, memory)
            .choose(p.points + b * p.count * p.width, {p.seeds[b]}, p.rows + b * p.clusters, inner_threads);
    });
}

}  // namespace sopr::SOPR_LEVEL
