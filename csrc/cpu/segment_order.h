// Order in which threads process segments.
#pragma once

#include <cstdint>
#include <vector>

namespace sopr {

// Indices of the segments, largest first, so that no thread starts a large one last. Stable.
std::vector<int32_t> largest_first(const int32_t* offsets, int64_t segments);

}  // namespace sopr
