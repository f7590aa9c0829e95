// The points that k-means starts from: greedy k-means++ (Arthur & Vassilvitskii 2007), or distinct rows at random.
#include "cpu/kmeans_points.h"
#include "cpu/table.h"
#include "philox.h"

namespace sopr::SOPR_LEVEL {
namespace {

struct Draws {
    int64_t seed, restart;

    // An integer in [0, bound), from draw `number` of `round`.
    uint64_t below(uint64_t bound, int64_t round, int64_t number) const {
        const Philox4 bits = philox(uint32_t(seed), uint32_t(uint64_t(seed) >> 32), uint32_t(number), uint32_t(round),
                                    uint32_t(restart), philox_place(kClusteringLevel, 0, 0, 0));
        const uint64_t fraction = uint64_t(bits.word[1]) << 32 | bits.word[0];
        return uint64_t((static_cast<unsigned __int128>(fraction) * bound) >> 64);
    }
};

// Floyd's method: after step j, the rows drawn are a uniform sample of the first count - clusters + j + 1.
void draw_rows(const Draws& draws, int64_t count, int64_t clusters, uint8_t* taken, int32_t* rows) {
    for (int64_t i = 0; i < count; ++i) taken[i] = 0;
    for (int64_t j = 0; j < clusters; ++j) {
        const int64_t last = count - clusters + j;
        const int64_t drawn = int64_t(draws.below(uint64_t(last) + 1, j, 0));
        const int64_t row = taken[drawn] ? last : drawn;
        taken[row] = 1;
        rows[j] = int32_t(row);
    }
}

constexpr int kMaxCandidates = 32;

int candidates_of(int64_t clusters) { return 2 + int(__builtin_log(double(clusters))); }

// What a candidate would leave in one chunk: the sum of the weights and the largest squared distance.
struct Left {
    uint64_t weight;
    float largest;
};

// One problem of k-means++. A point's weight is its squared distance to the nearest chosen row, as an integer: sums of
// integers do not depend on their order.
struct PlusPlus {
    PlusPlus(const KMeansInit& p, Arrays& memory)
        : count(p.count), width(p.width), chunks(chunks_of(p.count)), padded(blocks_of(p.count) * kLanes) {
        packed = memory.take<float>(padded * width);
        candidates = memory.take<float>(kMaxCandidates * width);
        for (int c = 0; c <= candidates_of(p.clusters); ++c) {
            squared[c] = memory.take<float>(padded);
            left[c] = memory.take<Left>(chunks);
        }
    }

    int64_t count, width, chunks, padded;
    float* packed;      // (blocks, D, kLanes)
    float* candidates;  // (candidates, D)
    // [0]: to the nearest row chosen so far, 0 for padding; [1 + c]: if candidate c were chosen too.
    float* squared[1 + kMaxCandidates];  // (padded)
    Left* left[1 + kMaxCandidates];      // (chunks)
    float to_weight = 0;  // chosen with the first row: until then distances may be too large for integers

    void choose(const float* points, const Draws& draws, int64_t clusters, int32_t* rows, int threads);

  private:
    int64_t sample(uint64_t target) const;
    void try_candidates(int number, int threads);
    template <int C>
    void try_block(int64_t block, int first, Float* largest);
    void weigh(int which, int64_t chunk);
    int best_of(int number) const;
    void take(int candidate);
};

// The row at which the running sum of weights passes the target.
int64_t PlusPlus::sample(uint64_t target) const {
    int64_t chunk = 0;
    for (; target >= left[0][chunk].weight; ++chunk) target -= left[0][chunk].weight;
    for (int64_t row = chunk * kChunk;; ++row) {
        const uint64_t weight = uint64_t(int64_t(squared[0][row] * to_weight));
        if (target < weight) return row;
        target -= weight;
    }
}

template <int C>
void PlusPlus::try_block(int64_t block, int first, Float* largest) {
    Float to[C];
    distances<C>(packed + block * width * kLanes, candidates + first * width, width, to);
    const Float now = load(squared[0] + block * kLanes);
    for (int c = 0; c < C; ++c) {
        const Float then = to[c] < now ? to[c] : now;
        largest[first + c] = then > largest[first + c] ? then : largest[first + c];
        store(squared[1 + first + c] + block * kLanes, then);
    }
}

void PlusPlus::weigh(int which, int64_t chunk) {
    const int64_t begin = chunk * kChunk, end = begin + kChunk < padded ? begin + kChunk : padded;
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += int64_t(squared[which][i] * to_weight);
    left[which][chunk].weight = uint64_t(sum);
}

void PlusPlus::try_candidates(int number, int threads) {
    parallel_for(chunks, threads, [&](int64_t chunk, int) {
        const int64_t begin = chunk * (kChunk / kLanes), blocks = padded / kLanes;
        const int64_t end = begin + kChunk / kLanes < blocks ? begin + kChunk / kLanes : blocks;
        Float largest[kMaxCandidates] = {};
        for (int64_t block = begin; block < end; ++block) {
            int c = 0;
            for (; c + 8 <= number; c += 8) try_block<8>(block, c, largest);
            if (number & 4) try_block<4>(block, c, largest), c += 4;
            if (number & 2) try_block<2>(block, c, largest), c += 2;
            if (number & 1) try_block<1>(block, c, largest);
        }
        for (int c = 0; c < number; ++c) {
            Left& mine = left[1 + c][chunk];
            mine.largest = 0;
            for (int lane = 0; lane < kLanes; ++lane)
                mine.largest = largest[c][lane] > mine.largest ? largest[c][lane] : mine.largest;
            weigh(1 + c, chunk);
        }
    });
}

// The candidate that leaves the least weight; of several, the first.
int PlusPlus::best_of(int number) const {
    int best = 0;
    uint64_t least = ~uint64_t(0);
    for (int c = 0; c < number; ++c) {
        uint64_t weight = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) weight += left[1 + c][chunk].weight;
        if (weight < least) least = weight, best = c;
    }
    return best;
}

void PlusPlus::take(int candidate) {
    float* const now = squared[0];
    Left* const left_now = left[0];
    squared[0] = squared[1 + candidate];
    left[0] = left[1 + candidate];
    squared[1 + candidate] = now;
    left[1 + candidate] = left_now;

    // Weights keep 62 bits for their sum, whatever the distances have shrunk to.
    float largest = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
        largest = left[0][chunk].largest > largest ? left[0][chunk].largest : largest;
    const float wanted = integer_scale_of(largest, count);
    if (wanted == to_weight) return;
    to_weight = wanted;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) weigh(0, chunk);
}

void PlusPlus::choose(const float* points, const Draws& draws, int64_t clusters, int32_t* rows, int threads) {
    const float scale = scale_of(largest_magnitude(points, count * width));
    pack(points, count, width, scale, packed);
    for (int64_t i = 0; i < padded; ++i) squared[0][i] = i < count ? __builtin_inff() : 0;

    int32_t drawn[kMaxCandidates];
    for (int64_t round = 0; round < clusters; ++round) {
        int number = 1;
        drawn[0] = int32_t(draws.below(uint64_t(count), 0, 0));
        if (round > 0) {
            uint64_t total = 0;
            for (int64_t chunk = 0; chunk < chunks; ++chunk) total += left[0][chunk].weight;
            if (total > 0) number = candidates_of(clusters);
            for (int c = 0; c < number && total > 0; ++c) drawn[c] = int32_t(sample(draws.below(total, round, c)));
        }
        for (int c = 0; c < number; ++c)
            for (int64_t d = 0; d < width; ++d) candidates[c * width + d] = points[drawn[c] * width + d] * scale;
        try_candidates(number, threads);
        const int best = best_of(number);
        take(best);
        rows[round] = drawn[best];
    }
}

}  // namespace

void kmeans_init(const KMeansInit& p, int threads) {
    Arrays measure(0);
    PlusPlus(p, measure);
    const size_t bytes = p.plus_plus ? measure.bytes() : size_t(p.count);
    const Scratch scratch(bytes, threads);
    for_problems(p.problems, threads, [&](int64_t b, int worker, int inner_threads) {
        Arrays memory = scratch.piece(worker);
        const Draws draws = {p.seeds[b], p.restart};
        int32_t* rows = p.rows + b * p.clusters;
        if (p.plus_plus)
            PlusPlus(p, memory).choose(p.points + b * p.count * p.width, draws, p.clusters, rows, inner_threads);
        else
            draw_rows(draws, p.count, p.clusters, memory.take<uint8_t>(size_t(p.count)), rows);
    });
}

}  // namespace sopr::SOPR_LEVEL
