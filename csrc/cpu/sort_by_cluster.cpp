#include "cpu/kernel_table.h"
#include "cpu/pool.h"

namespace sopr::SOPR_LEVEL {

// A stable counting sort. While rows are written, offsets[k] is the next position of cluster k; afterwards offsets are
// shifted back by one cluster.
void sort_by_cluster(const SortByCluster& p, int threads) {
    parallel_for(p.problems, threads, [&](int64_t b, int) {
        const int32_t* labels = p.labels + b * p.count;
        int32_t* rows = p.rows + b * p.count;
        int32_t* offsets = p.offsets + b * (p.clusters + 1);
        for (int64_t k = 0; k <= p.clusters; ++k) offsets[k] = 0;
        for (int64_t i = 0; i < p.count; ++i) ++offsets[labels[i] + 1];
        for (int64_t k = 0; k < p.clusters; ++k) offsets[k + 1] += offsets[k];
        for (int64_t i = 0; i < p.count; ++i) rows[offsets[labels[i]]++] = int32_t(i);
        for (int64_t k = p.clusters; k > 0; --k) offsets[k] = offsets[k - 1];
        offsets[0] = 0;
    });
}

}  // namespace sopr::SOPR_LEVEL
