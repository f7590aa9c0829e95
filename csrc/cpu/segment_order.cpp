#include "cpu/segment_order.h"

#include <algorithm>
#include <numeric>

namespace sopr {

std::vector<int32_t> largest_first(const int32_t* offsets, int64_t segments) {
    std::vector<int32_t> order(segments);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return offsets[a + 1] - offsets[a] > offsets[b + 1] - offsets[b]; });
    return order;
}

}  // namespace sopr
