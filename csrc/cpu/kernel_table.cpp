#include "cpu/kernel_table.h"

namespace sopr::SOPR_LEVEL {

extern const Table table;
// clang-format off
const Table table = {
    segment_mean,
    segment_mean_backward,
    segment_dropout,
    segment_attention,
    segment_attention_backward,
    kmeans_init,
    kmeans,
    segment_encoder,
    segment_encoder_backward,
    mlp,
    mlp_backward,
    mlp_step,
    segment_encoder_workspace,
    segment_encoder_tape,
};
// clang-format on

}  // namespace sopr::SOPR_LEVEL
