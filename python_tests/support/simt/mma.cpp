// The instructions of csrc/cuda/mma.h on the CPU, written from the fragment tables of the PTX manual that it names.
#include "cuda/mma.h"

#include <cfenv>
#include <cstring>
#include <deque>
#include <map>

#include "shadow.h"

// Products of fragments so far, by all lanes.
static int products = 0;
extern "C" __attribute__((visibility("default"))) int simt_products() { return products; }

namespace sopr::cuda {
namespace {

float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof x);
    return bits;
}

// Tensor cores cut off what does not fit the sum, which is worse than rounding.
float truncated(double exact) {
    const float nearest = float(exact);
    if (!(std::fabs(nearest) < INFINITY) || std::fabs(double(nearest)) <= std::fabs(exact)) return nearest;
    return std::nextafterf(nearest, 0.0f);
}

struct Operands {
    uint32_t a[4], b[2];
};

// c += a b for this lane's four sums, where a(row, k) and b(k, column) find elements in the lanes' operands.
template <int kDepth, class A, class B>
void multiply(float (&c)[4], const A& a, const B& b) {
    ++products;
    const int group = simt::lane() / 4, pair = simt::lane() % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = group + (i >= 2 ? 8 : 0), column = pair * 2 + (i & 1);
        double sum = c[i];
        for (int k = 0; k < kDepth; ++k) sum += double(a(row, k)) * double(b(k, column));
        c[i] = truncated(sum);
    }
}

}  // namespace

uint32_t to_bf16(float low, float high) {
    const auto half = [](float x) {
        const uint32_t bits = bits_of(x);
        if (x != x) return 0x7FFFu;
        return (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
    };
    return half(low) | half(high) << 16;
}

void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const simt::Values values = simt::exchange(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    float left[16][8], right[8][8];
    for (int lane = 0; lane < 32; ++lane) {
        const Operands x = values.of<Operands>(lane);
        const int group = lane / 4, in_group = lane % 4;
        for (int i = 0; i < 4; ++i) {  // row: groupID for a0 and a2, else groupID + 8; the 13 lowest bits are ignored
            const int row = i == 0 || i == 2 ? group : group + 8, column = i < 2 ? in_group : in_group + 4;
            left[row][column] = float_of(x.a[i] & 0xFFFFE000u);
        }
        for (int i = 0; i < 2; ++i) right[i == 0 ? in_group : in_group + 4][group] = float_of(x.b[i] & 0xFFFFE000u);
    }
    multiply<8>(c, [&](int row, int k) { return left[row][k]; }, [&](int k, int column) { return right[k][column]; });
}

void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const simt::Values values = simt::exchange(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    float left[16][16], right[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const Operands x = values.of<Operands>(lane);
        const int group = lane / 4, in_group = lane % 4;
        const auto half = [](const uint32_t* words, int i) { return float_of((words[i / 2] >> (i % 2 * 16)) << 16); };
        for (int i = 0; i < 8; ++i) {  // row: groupID for a0, a1, a4 and a5
            const int row = (0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8;
            left[row][in_group * 2 + (i & 1) + (i < 4 ? 0 : 8)] = half(x.a, i);
        }
        for (int i = 0; i < 4; ++i) right[in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)][group] = half(x.b, i);
    }
    multiply<16>(c, [&](int row, int k) { return left[row][k]; }, [&](int k, int column) { return right[k][column]; });
}

namespace {

template <int kMatrices>
void load(uint32_t (&r)[kMatrices], const void* row) {
    const simt::Values rows = simt::exchange(row);
    const int lane = simt::lane();
    for (int i = 0; i < kMatrices; ++i) {
        const char* from = rows.of<const char*>(8 * i + lane / 4);
        if (reinterpret_cast<uintptr_t>(from) % 16) __builtin_trap();
        simt::shadow::touch(from + lane % 4 * 4, 4, false);
        std::memcpy(&r[i], from + lane % 4 * 4, 4);
    }
}

template <int kMatrices>
void load_transposed(uint32_t (&r)[kMatrices], const void* row) {
    const simt::Values rows = simt::exchange(row);
    const int lane = simt::lane();
    for (int i = 0; i < kMatrices; ++i) {
        uint16_t halves[2];
        for (int j = 0; j < 2; ++j) {
            const char* from = rows.of<const char*>(8 * i + lane % 4 * 2 + j);
            if (reinterpret_cast<uintptr_t>(from) % 16) __builtin_trap();
            simt::shadow::touch(from + lane / 4 * 2, 2, false);
            std::memcpy(&halves[j], from + lane / 4 * 2, 2);
        }
        r[i] = halves[0] | uint32_t(halves[1]) << 16;
    }
}

struct Copy {
    void* to;
    const void* from;
};

// Copies under way: by thread, groups of copies. The last group is open.
std::map<unsigned, std::deque<std::deque<Copy>>> under_way;

std::deque<std::deque<Copy>>& groups_of_this_thread() {
    auto& groups = under_way[threadIdx.x];
    if (groups.empty()) groups.emplace_back();
    return groups;
}

}  // namespace

void load_matrices(uint32_t (&r)[2], const void* row) { load(r, row); }
void load_matrices(uint32_t (&r)[4], const void* row) { load(r, row); }
void load_matrices_transposed(uint32_t (&r)[2], const void* row) { load_transposed(r, row); }
void load_matrices_transposed(uint32_t (&r)[4], const void* row) { load_transposed(r, row); }

void copy_async(void* to, const void* from) {
    if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16) __builtin_trap();
    simt::shadow::touch(to, 16, true);
    groups_of_this_thread().back().push_back({to, from});
}

void end_copies() { groups_of_this_thread().emplace_back(); }

void wait_for_copies(int groups) {
    auto& all = groups_of_this_thread();
    while (int(all.size()) > groups + 1) {
        for (const Copy& copy : all.front()) {
            simt::shadow::touch(copy.from, 16, false);
            simt::shadow::touch(copy.to, 16, true);
            std::memcpy(copy.to, copy.from, 16);
        }
        all.pop_front();
    }
}

}  // namespace sopr::cuda

void simt::forget_copies() { sopr::cuda::under_way.clear(); }
