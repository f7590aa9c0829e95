// The points that k-means starts from: k-means++, or distinct rows at random.
#include "cpu/kmeans_plusplus.h"
#include "cpu/table.h"

namespace sopr::SOPR_LEVEL {
namespace {

// Floyd's method: after step j, the rows drawn are a uniform sample of the first count - clusters + j + 1.
void draw_rows(const ClusteringDraw& draw, int64_t count, int64_t clusters, uint8_t* taken, int32_t* rows) {
    for (int64_t i = 0; i < count; ++i) taken[i] = 0;
    for (int64_t j = 0; j < clusters; ++j) {
        const int64_t last = count - clusters + j;
        const int64_t drawn = int64_t(draw(uint64_t(last) + 1, j, 0));
        const int64_t row = taken[drawn] ? last : drawn;
        taken[row] = 1;
        rows[j] = int32_t(row);
    }
}

}  // namespace

void kmeans_init(const KMeansInit& p, int threads) {
    Arrays measure(0);
    PlusPlus(p, threads, measure);
    const WorkerMemory scratch(measure.bytes(), threads);
    for_problems(p.problems, threads, [&](int64_t b, int worker, int inner_threads) {
        Arrays memory = scratch.piece(worker);
        const ClusteringDraw draw = {p.seeds[b], p.restart};
        int32_t* rows = p.rows + b * p.clusters;
        if (p.plus_plus)
            PlusPlus(p, inner_threads, memory).choose(p.points + b * p.count * p.width, draw, rows, inner_threads);
        else
            draw_rows(draw, p.count, p.clusters, memory.take<uint8_t>(size_t(p.count)), rows);
    });
}

}  // namespace sopr::SOPR_LEVEL
