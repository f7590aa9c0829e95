// Lloyd's algorithm. Skips centroids that cannot be nearest (kmeans_nearby.h) without changing labels: on real states,
// a point is compared with a seventh of 256 centroids.
#include "cpu/kernel_table.h"
#include "cpu/kmeans_groups.h"
#include "cpu/kmeans_nearby.h"

namespace sopr::SOPR_LEVEL {
namespace {

constexpr int kSpacing = 8;  // int64 per cache line: avoids false sharing

// One problem. Sums of coordinates are integers (in a unit per column), so they do not depend on the order. Points that
// change their cluster update them. Each worker has its share of the sums; only totals over shares are meaningful.
struct Lloyd {
    Lloyd(const KMeans& p, int workers, Arena& memory)
        : groups(p.count, p.width, p.clusters, memory),
          count(p.count),
          width(p.width),
          clusters(p.clusters),
          padded(blocks_of(p.clusters) * kLanes),
          shares(workers) {
        to_integer = memory.take<float>(width);
        centroids = memory.take<float>((clusters + kAnchors) * width);
        packed_centroids = memory.take<float>(padded * width);
        all_centroids = memory.take<int32_t>(padded);
        from_anchors = memory.take<float>(shares * kAnchors * padded);
        nearby_index = memory.take<int32_t>(shares * (padded + kLanes));
        nearby_squared = memory.take<float>(shares * (padded + kLanes));
        sums = memory.take<int64_t>(shares * clusters * width);
        sizes = memory.take<int64_t>(shares * clusters);
        changes = memory.take<int64_t>(shares * kSpacing);
    }

    Groups groups;
    int64_t count, width, clusters, padded, shares;
    float* to_integer;        // (D), powers of two that turn columns into integers
    float* centroids;         // (K, D), scaled
    float* packed_centroids;  // (blocks of K, D, kLanes)
    int32_t* all_centroids;   // (padded), 0, 1, …
    float* from_anchors;      // (shares, kAnchors, padded), squared distances of the current anchors to all centroids
    int32_t* nearby_index;    // (shares, padded + kLanes)
    float* nearby_squared;    // (shares, padded + kLanes)
    int64_t* sums;            // (shares, K, D)
    int64_t* sizes;           // (shares, K)
    int64_t* changes;         // (shares, kSpacing), points that changed their cluster in this iteration
    const float* points;      // (N, D), not scaled
    float scale;
    int threads;

    void begin(const float* raw_points, const float* start, int inner_threads);
    void solve(int64_t steps, double tolerance, int32_t* steps_done);
    double inertia() const;

  private:
    int64_t assign();
    void measure_anchors(int64_t first, int share);
    void assign_chunk(int64_t begin, int64_t end, int share);
    void relabel_block(int64_t block, const Nearest& nearest, int share);
    void relabel(int64_t position, int32_t label, int share);
    bool fill_empty();
    double move_centroids();
    double mean_variance() const;
    int64_t total(const int64_t* shared, int64_t index, int64_t stride) const;
};

void Lloyd::begin(const float* raw_points, const float* start, int inner_threads) {
    points = raw_points;
    threads = inner_threads;
    float* magnitudes = to_integer;
    column_magnitudes(points, count, width, magnitudes);
    const float largest = largest_magnitude(magnitudes, width);
    scale = scale_of(__builtin_fmaxf(largest, largest_magnitude(start, clusters * width)));
    for (int64_t d = 0; d < width; ++d) to_integer[d] = integer_scale_of(magnitudes[d] * scale, count);
    for (int64_t i = 0; i < clusters * width; ++i) centroids[i] = start[i] * scale;
    for (int64_t i = clusters * width; i < (clusters + kAnchors) * width; ++i) centroids[i] = 0;
    for (int64_t i = 0; i < shares * clusters * width; ++i) sums[i] = 0;
    for (int64_t i = 0; i < shares * clusters; ++i) sizes[i] = 0;
    for (int64_t k = 0; k < padded; ++k) all_centroids[k] = int32_t(k);
    groups.fill(points, scale, threads);
}

int64_t Lloyd::total(const int64_t* shared, int64_t index, int64_t stride) const {
    int64_t sum = 0;
    for (int64_t share = 0; share < shares; ++share) sum += shared[share * stride + index];
    return sum;
}

void Lloyd::relabel(int64_t position, int32_t label, int share) {
    const int64_t from = groups.labels[position], to = label, row = groups.rows[position];
    groups.labels[position] = label;
    if (row < 0) return;
    const int64_t columns = width;
    const float* x = points + row * columns;
    const float* factors = to_integer;
    const float shared = scale;
    int64_t* sum = sums + (share * clusters + to) * columns;
    for (int64_t d = 0; d < columns; ++d) sum[d] += as_integer(x[d], shared, factors[d]);
    sizes[share * clusters + to] += 1;
    if (from < 0) return;
    sum = sums + (share * clusters + from) * columns;
    for (int64_t d = 0; d < columns; ++d) sum[d] -= as_integer(x[d], shared, factors[d]);
    sizes[share * clusters + from] -= 1;
}

// Distances of kAnchors centroids from `first` on to all centroids; NaN to itself, so that no anchor is nearby itself.
void Lloyd::measure_anchors(int64_t first, int share) {
    float* from = from_anchors + share * kAnchors * padded;
    for (int64_t k = 0; k < padded; k += kLanes) {
        Float squared[kAnchors];
        distances<kAnchors>(packed_centroids + k * width, centroids + first * width, width, squared);
        for (int a = 0; a < kAnchors; ++a) store(from + a * padded + k, squared[a]);
    }
    for (int64_t a = 0; a < kAnchors && first + a < clusters; ++a) from[a * padded + first + a] = __builtin_nanf("");
}

void Lloyd::assign_chunk(int64_t begin, int64_t end, int share) {
    float reach[Groups::kChunkBlocks];
    for (int64_t block = begin; block < end; ++block) {
        const int64_t anchor = groups.anchors[block];
        if (anchor == Groups::kNoAnchor) continue;
        Float squared[1];
        distances<1>(groups.packed + block * width * kLanes, centroids + anchor * width, width, squared);
        store(groups.squared + block * kLanes, squared[0]);
        reach[block - begin] = with_rounding_margin(4 * largest(squared[0]), width);
    }

    // The far blocks of a cluster come first: centroids near them usually include those near the other blocks.
    Nearby nearby = {nearby_index + share * (padded + kLanes), nearby_squared + share * (padded + kLanes), 0, 0};
    int32_t anchor = Groups::kNoAnchor;
    Work work;
    for (int64_t block = end - 1; block >= begin && !work.cancelled_after(kLanes * clusters * width); --block) {
        const float* x = groups.packed + block * width * kLanes;
        if (groups.anchors[block] == Groups::kNoAnchor) {
            relabel_block(block, nearest_of(x, centroids, clusters, width), share);
            continue;
        }
        const int32_t last = anchor;
        anchor = groups.anchors[block];
        if (last < 0 || anchor / kAnchors != last / kAnchors) measure_anchors(anchor / kAnchors * kAnchors, share);
        const float within = reach[block - begin];
        if (anchor == last && within <= nearby.reach)
            nearby.keep(within, nearby.index, nearby.squared, nearby.number);
        else
            nearby.keep(within, all_centroids, from_anchors + (share * kAnchors + anchor % kAnchors) * padded,
                        clusters);
        Nearest nearest = {load(groups.squared + block * kLanes), Int{} + anchor};
        compare_nearby(x, centroids, nearby, width, nearest);
        relabel_block(block, nearest, share);
    }
}

void Lloyd::relabel_block(int64_t block, const Nearest& nearest, int share) {
    store(groups.squared + block * kLanes, nearest.squared);
    int32_t* labels = groups.labels + block * kLanes;
    if (__builtin_memcmp(&nearest.label, labels, sizeof nearest.label) == 0) return;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (nearest.label[lane] == labels[lane]) continue;
        relabel(block * kLanes + lane, nearest.label[lane], share);
        ++changes[share * kSpacing];
    }
}

// Label every point with its nearest centroid; returns how many labels changed, copies included.
int64_t Lloyd::assign() {
    pack(centroids, clusters, width, 1, packed_centroids);
    for (int64_t share = 0; share < shares; ++share) changes[share * kSpacing] = 0;
    parallel_for(groups.chunks(), threads, [&](int64_t chunk, int worker) {
        const int64_t begin = chunk * Groups::kChunkBlocks, end = begin + Groups::kChunkBlocks;
        assign_chunk(begin, min(end, groups.blocks), worker);
    });
    return total(changes, 0, kSpacing);
}

// Move the centroid of every empty cluster to the farthest point and relabel the points that are nearest to it; returns
// whether there was one. Clusters stay empty only if every point lies on a centroid. Ignores points that are not finite
// (a replayed CUDA graph skips checks), since they would make this loop endless.
bool Lloyd::fill_empty() {
    bool filled = false;
    for (int64_t k = 0; k < clusters; ++k) {
        if (total(sizes, k, clusters) > 0) continue;
        int64_t farthest = -1;
        float most = 0;
        for (int64_t position = 0; position < groups.positions(); ++position) {
            const float squared = groups.squared[position];
            if (groups.rows[position] < 0 || !(squared < __builtin_inff())) continue;
            const bool first = squared == most && farthest >= 0 && groups.rows[position] < groups.rows[farthest];
            if (squared > most || first) most = squared, farthest = position;
        }
        if (farthest < 0) break;
        float* centroid = centroids + k * width;
        for (int64_t d = 0; d < width; ++d) centroid[d] = points[groups.rows[farthest] * width + d] * scale;
        for (int64_t block = 0; block < groups.blocks; ++block) {
            Float to[1];
            distances<1>(groups.packed + block * width * kLanes, centroid, width, to);
            for (int lane = 0; lane < kLanes; ++lane) {
                const int64_t position = block * kLanes + lane;
                const float squared = to[0][lane];
                const bool tie = squared == groups.squared[position];
                if (!(squared <= groups.squared[position]) || (tie && groups.labels[position] < k)) continue;
                relabel(position, int32_t(k), 0);
                groups.squared[position] = squared;
            }
        }
        filled = true;
        k = -1;  // start over: another cluster may now be empty
        if (cancelled()) return filled;
    }
    return filled;
}

// Move every centroid to the mean of its points; returns the sum of squared moves.
double Lloyd::move_centroids() {
    double moved[kSumLanes] = {};
    for (int64_t k = 0; k < clusters; ++k) {
        const int64_t size = total(sizes, k, clusters);
        if (size == 0) continue;
        double of_cluster[kSumLanes] = {};
        for (int64_t d = 0; d < width; ++d) {
            const int64_t i = k * width + d;
            const float mean = float(double(total(sums, i, clusters * width)) / double(size) / double(to_integer[d]));
            const double move = double(mean) - double(centroids[i]);
            double& sum = of_cluster[d % kSumLanes];
            sum = std::fma(move, move, sum);
            centroids[i] = mean;
        }
        moved[k % kSumLanes] += sum_of_lanes(of_cluster);
    }
    return sum_of_lanes(moved);
}

// Mean variance of the columns, by which scikit-learn scales its tolerance too.
double Lloyd::mean_variance() const {
    const VarianceUnit unit(count);
    double variance = 0;
    for (int64_t d = 0; d < width; ++d) {
        int64_t sum = 0, squares = 0;
        for (int64_t k = 0; k < clusters; ++k) sum += total(sums, k * width + d, clusters * width);
        const double mean = double(sum) / (double(count) * double(to_integer[d]));
        for (int64_t row = 0; row < count; ++row)
            squares += unit.square(double(points[row * width + d] * scale) - mean, to_integer[d]);
        variance += unit.variance(squares, to_integer[d], count);
    }
    return variance / double(width);
}

void Lloyd::solve(int64_t steps, double tolerance, int32_t* steps_done) {
    *steps_done = 0;
    double allowed = 0;
    int64_t stale = 0;  // upper bound of the points that left the cluster of their group
    for (int64_t step = 0; step < steps; ++step) {
        *steps_done = int32_t(step + 1);
        const int64_t changed = assign();
        if (cancelled()) return;
        if (!fill_empty() && changed == 0) return;
        if (step == 0 && tolerance > 0) allowed = tolerance * mean_variance();
        stale += changed;
        if (count >= kLanes * clusters && stale * 8 >= count) {
            groups.group(points, scale, threads);
            stale = 0;
        }
        if (move_centroids() <= allowed) break;
    }
    assign();
    if (!cancelled()) fill_empty();
}

double Lloyd::inertia() const {
    const float largest = largest_magnitude(groups.squared, groups.positions());
    if (!(largest < __builtin_inff())) return largest;
    const float unit = integer_scale_of(largest, count);
    int64_t sum = 0;
    for (int64_t position = 0; position < groups.positions(); ++position)
        if (groups.rows[position] >= 0) sum += as_integer(groups.squared[position], 1, unit);
    return double(sum) / double(unit) / double(scale) / double(scale);
}

}  // namespace

void kmeans(const KMeans& p, int threads) {
    // A problem has either one worker and its memory, or all threads and, from that of worker 0 on, all the memory.
    Arena one, all;
    Lloyd(p, 1, one);
    Lloyd(p, threads, all);
    const int workers = problems_at_a_time(p.problems, threads);
    const WorkerMemory scratch(max(one.bytes(), ceil_div(all.bytes(), workers)), workers);
    for_problems(p.problems, threads, [&](int64_t b, int worker, int inner_threads) {
        Arena memory = scratch.arena(worker);
        Lloyd lloyd(p, inner_threads, memory);
        float* centroids = p.centroids + b * p.clusters * p.width;
        lloyd.begin(p.points + b * p.count * p.width, centroids, inner_threads);
        lloyd.solve(p.steps, p.tolerance, p.steps_done + b);
        if (cancelled()) return;
        p.inertia[b] = lloyd.inertia();
        for (int64_t i = 0; i < p.clusters * p.width; ++i) centroids[i] = lloyd.centroids[i] / lloyd.scale;
        const Groups& groups = lloyd.groups;
        for (int64_t i = 0; i < groups.positions(); ++i)
            if (groups.rows[i] >= 0) p.labels[b * p.count + groups.rows[i]] = groups.labels[i];
    });
    sort_by_cluster({p.labels, p.rows, p.offsets, p.problems, p.count, p.clusters}, threads);
}

}  // namespace sopr::SOPR_LEVEL
