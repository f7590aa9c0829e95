#include "cpu/table.h"

namespace sopr::SOPR_LEVEL {

extern const Table table;
const Table table = {
    segment_mean,
    segment_mean_backward,
};

}  // namespace sopr::SOPR_LEVEL
