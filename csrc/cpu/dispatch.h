// Choice of the instruction-set level: the best that the processor supports, or the one named by SOPR_FAST_ISA.
#pragma once

#include <string>
#include <vector>

#include "cpu/kernel_table.h"

namespace sopr {

struct Level {
    const char* name;
    const Table* table;
};

std::vector<Level> supported_levels();   // ascending
Level choose_level(const char* wanted);  // null or empty: the best; std::invalid_argument if not supported

}  // namespace sopr
