// Lloyd's algorithm.
#include "cpu/kmeans_points.h"
#include "cpu/table.h"

namespace sopr::SOPR_LEVEL {
namespace {

// One problem. Sums of coordinates are integers, brought up to date by the points that change their cluster; each
// worker keeps a share of them, and only the total of the shares means anything.
struct Lloyd {
    Lloyd(const KMeans& p, int workers, Arrays& memory)
        : count(p.count), width(p.width), clusters(p.clusters), padded(blocks_of(p.count) * kLanes), shares(workers) {
        packed = memory.take<float>(padded * width);
        centroids = memory.take<float>(clusters * width);
        squared = memory.take<float>(padded);
        labels = memory.take<int32_t>(padded);
        sums = memory.take<int64_t>(shares * clusters * width);
        sizes = memory.take<int64_t>(shares * clusters);
        changed = memory.take<bool>(size_t(chunks_of(count)));
    }

    int64_t count, width, clusters, padded, shares;
    float* packed;     // (blocks, D, kLanes), scaled
    float* centroids;  // (K, D), scaled
    float* squared;    // (padded) to the centroid of the label
    int32_t* labels;   // (padded)
    int64_t* sums;     // (shares, K, D)
    int64_t* sizes;    // (shares, K)
    bool* changed;     // (chunks)
    float scale, to_integer;
    int threads;

    void begin(const float* points, const float* start, int inner_threads);
    void solve(int64_t steps, double tolerance, int32_t* steps_done);
    double inertia() const;

  private:
    bool assign();
    bool fill_empty();
    double move_centroids();
    double mean_variance();
    void relabel(int64_t row, int32_t label, int64_t share);
    int64_t total(const int64_t* shared, int64_t index, int64_t stride) const;
};

void Lloyd::begin(const float* points, const float* start, int inner_threads) {
    const float largest = largest_magnitude(points, count * width);
    scale = scale_of(__builtin_fmaxf(largest, largest_magnitude(start, clusters * width)));
    to_integer = integer_scale_of(largest * scale, count);
    threads = inner_threads;
    for (int64_t i = 0; i < clusters * width; ++i) centroids[i] = start[i] * scale;
    for (int64_t i = 0; i < shares * clusters * width; ++i) sums[i] = 0;
    for (int64_t i = 0; i < shares * clusters; ++i) sizes[i] = 0;
    for (int64_t i = 0; i < padded; ++i) labels[i] = -1;
    parallel_for(chunks_of(count), threads, [&](int64_t chunk, int) {
        const int64_t row = chunk * kChunk;
        pack(points + row * width, count - row < kChunk ? count - row : kChunk, width, scale, packed + row * width);
    });
}

int64_t Lloyd::total(const int64_t* shared, int64_t index, int64_t stride) const {
    int64_t sum = 0;
    for (int64_t share = 0; share < shares; ++share) sum += shared[share * stride + index];
    return sum;
}

void Lloyd::relabel(int64_t row, int32_t label, int64_t share) {
    const float* x = packed + row / kLanes * width * kLanes + row % kLanes;
    int64_t* mine = sums + share * clusters * width;
    const int64_t from = labels[row], to = label;
    for (int64_t d = 0; d < width; ++d) {
        const int64_t value = int64_t(x[d * kLanes] * to_integer);
        mine[to * width + d] += value;
        if (from >= 0) mine[from * width + d] -= value;
    }
    sizes[share * clusters + to] += 1;
    if (from >= 0) sizes[share * clusters + from] -= 1;
    labels[row] = label;
}

// Every point to its nearest centroid; whether any label changed.
bool Lloyd::assign() {
    parallel_for(chunks_of(count), threads, [&](int64_t chunk, int worker) {
        const int64_t begin = chunk * kChunk, end = begin + kChunk < count ? begin + kChunk : count;
        changed[chunk] = false;
        for (int64_t row = begin; row < end; row += kLanes) {
            const Nearest nearest = nearest_of(packed + row * width, centroids, clusters, width);
            store(squared + row, nearest.squared);
            for (int64_t lane = 0; lane < kLanes && row + lane < end; ++lane) {
                if (nearest.label[lane] == labels[row + lane]) continue;
                relabel(row + lane, nearest.label[lane], worker);
                changed[chunk] = true;
            }
        }
    });
    bool any = false;
    for (int64_t chunk = 0; chunk < chunks_of(count); ++chunk) any |= changed[chunk];
    return any;
}

// Moves every empty cluster's centroid to the farthest point, with the points that are nearest to it there; whether
// there was one. Clusters stay empty only when every point lies on a centroid.
bool Lloyd::fill_empty() {
    bool filled = false;
    for (int64_t k = 0; k < clusters; ++k) {
        if (total(sizes, k, clusters) > 0) continue;
        int64_t farthest = 0;
        for (int64_t i = 1; i < count; ++i)
            if (squared[i] > squared[farthest]) farthest = i;
        if (squared[farthest] == 0) break;
        float* centroid = centroids + k * width;
        for (int64_t d = 0; d < width; ++d)
            centroid[d] = packed[(farthest / kLanes * width + d) * kLanes + farthest % kLanes];
        for (int64_t row = 0; row < count; row += kLanes) {
            Float to[1];
            distances<1>(packed + row * width, centroid, width, to);
            for (int64_t i = row; i < row + kLanes && i < count; ++i) {
                const float there = to[0][i - row];
                if (there > squared[i] || (there == squared[i] && labels[i] < k)) continue;
                relabel(i, int32_t(k), 0);
                squared[i] = there;
            }
        }
        filled = true;
        k = -1;  // that may have emptied another cluster
    }
    return filled;
}

// Every centroid to the mean of its points; the sum of the squared moves.
double Lloyd::move_centroids() {
    double moved = 0;
    for (int64_t k = 0; k < clusters; ++k) {
        const int64_t size = total(sizes, k, clusters);
        if (size == 0) continue;
        for (int64_t d = 0; d < width; ++d) {
            const int64_t at = k * width + d;
            const float mean = float(double(total(sums, at, clusters * width)) / double(size) / double(to_integer));
            const double move = double(mean) - double(centroids[at]);
            moved += move * move;
            centroids[at] = mean;
        }
    }
    return moved;
}

// The mean over the columns of their variance, as scikit-learn scales its tolerance.
double Lloyd::mean_variance() {
    double variance = 0;
    for (int64_t d = 0; d < width; ++d) {
        double mean = 0;
        for (int64_t k = 0; k < clusters; ++k) mean += double(total(sums, k * width + d, clusters * width));
        mean /= double(count) * double(to_integer);
        for (int64_t i = 0; i < count; ++i) {
            const double off = double(packed[(i / kLanes * width + d) * kLanes + i % kLanes]) - mean;
            variance += off * off;
        }
    }
    return variance / double(count) / double(width);
}

void Lloyd::solve(int64_t steps, double tolerance, int32_t* steps_done) {
    *steps_done = 0;
    bool settled = false;
    double allowed = 0;
    for (int64_t step = 0; step < steps && !settled; ++step) {
        const bool changed = assign() | fill_empty();
        if (step == 0 && tolerance > 0) allowed = tolerance * mean_variance();
        settled = !changed;
        *steps_done = int32_t(step + 1);
        if (!settled && move_centroids() <= allowed) break;
    }
    if (settled) return;
    assign();
    fill_empty();
}

double Lloyd::inertia() const {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += double(squared[i]);
    return sum / double(scale) / double(scale);
}

}  // namespace

void kmeans(const KMeans& p, int threads) {
    Arrays measure(0);
    Lloyd(p, threads, measure);
    const Scratch scratch(measure.bytes(), threads);
    for_problems(p.problems, threads, [&](int64_t b, int worker, int inner_threads) {
        Arrays memory = scratch.piece(worker);
        Lloyd lloyd(p, inner_threads, memory);
        float* centroids = p.centroids + b * p.clusters * p.width;
        lloyd.begin(p.points + b * p.count * p.width, centroids, inner_threads);
        lloyd.solve(p.steps, p.tolerance, p.steps_done + b);
        p.inertia[b] = lloyd.inertia();
        for (int64_t i = 0; i < p.clusters * p.width; ++i) centroids[i] = lloyd.centroids[i] / lloyd.scale;
        for (int64_t i = 0; i < p.count; ++i) p.labels[b * p.count + i] = lloyd.labels[i];
    });
    sort_by_cluster({p.labels, p.rows, p.offsets, p.problems, p.count, p.clusters}, threads);
}

}  // namespace sopr::SOPR_LEVEL
