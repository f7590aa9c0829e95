#include "cpu/dispatch.h"

#include <stdexcept>

namespace sopr {

namespace portable {
extern const Table table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Table table;
}
namespace avx512 {
extern const Table table;
}
namespace avx512_bf16 {
extern const Table table;
}
#endif

std::vector<Level> supported_levels() {
    std::vector<Level> levels = {{"portable", &portable::table}};
#if defined(__x86_64__)
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (has_avx2) levels.push_back({"avx2", &avx2::table});
    if (has_avx512) levels.push_back({"avx512", &avx512::table});
    if (has_avx512 && __builtin_cpu_supports("avx512bf16")) levels.push_back({"avx512_bf16", &avx512_bf16::table});
#endif
    return levels;
}

Level choose_level(const char* wanted) {
    const std::vector<Level> levels = supported_levels();
    if (!wanted || !*wanted) return levels.back();
    std::string names;
    for (const Level& level : levels) {
        if (wanted == std::string(level.name)) return level;
        names += names.empty() ? level.name : std::string(", ") + level.name;
    }
    throw std::invalid_argument("SOPR_FAST_ISA is '" + std::string(wanted) +
                                "', but this processor supports only: " + names);
}

}  // namespace sopr
