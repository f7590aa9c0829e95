#include "cpu/table.h"

namespace sopr::SOPR_LEVEL {

extern const Table table;
// clang-format off
const Table table = {
    segment_mean,
    segment_mean_backward,
    kmeans_assign,
    kmeans_init,
    kmeans,
    sort_by_cluster,
    segment_encoder,
    segment_encoder_backward,
    segment_encoder_workspace,
};
// clang-format on

}  // namespace sopr::SOPR_LEVEL
