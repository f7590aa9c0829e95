// The order in which threads take segments.
#pragma once

#include <cstdint>
#include <vector>

namespace sopr {

// The segments by size, largest first, so that no thread is left with a large one at the end; equal ones in order.
std::vector<int32_t> largest_first(const int32_t* offsets, int64_t segments);

}  // namespace sopr
