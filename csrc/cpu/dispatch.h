// The instruction-set level in use: the best the processor has, or the lower one that SOPR_FAST_ISA names.
#pragma once

#include <string>
#include <vector>

#include "cpu/table.h"

namespace sopr {

struct Level {
    const char* name;
    const Table* table;
};

std::vector<Level> supported_levels();   // ascending
Level choose_level(const char* wanted);  // null or empty: the best; throws std::invalid_argument for others

}  // namespace sopr
