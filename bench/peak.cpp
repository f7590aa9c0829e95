// Measure the peak rate of this machine: GFLOP/s of fused multiply-adds in registers on N threads, in fp32 and in bf16
// pairs. Prints both; 0 for bf16 if the processor does not support it.
//
//     c++ -O3 -march=native -pthread peak.cpp -o peak && ./peak N
#include <immintrin.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kChains = 12;  // more than latency * throughput
constexpr long kRounds = 20'000'000;

#if defined(__AVX512F__)
using Float = __m512;
#elif defined(__AVX2__)
using Float = __m256;
#else
using Float = __m128;
#endif
constexpr int kLanes = sizeof(Float) / 4;

template <class Step>
float chains(Step step) {
    Float sum[kChains];
    for (int i = 0; i < kChains; ++i) sum[i] = Float{} + float(i);
    for (long round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < kChains; ++i) sum[i] = step(sum[i]);
    }
    float total = 0;
    for (int i = 0; i < kChains; ++i) total += sum[i][0];
    return total;
}

template <class Step>
double gflops(int threads, int flops, Step step) {
    std::vector<std::thread> workers;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < threads; ++i)
        workers.emplace_back([&] {
            volatile float kept = chains(step);
            (void)kept;
        });
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return 1e-9 * threads * flops * kChains * kRounds / seconds.count();
}

}  // namespace

int main(int, char** arguments) {
    const int threads = std::atoi(arguments[1]);
    const Float a = Float{} + 0.5f;
    double best[2] = {};
    for (int attempt = 0; attempt < 3; ++attempt) {
        const double fp32 = gflops(threads, 2 * kLanes, [=](Float s) { return s * a + a; });
        best[0] = fp32 > best[0] ? fp32 : best[0];
#if defined(__AVX512BF16__)
        const double bf16 =
            gflops(threads, 4 * kLanes, [=](Float s) { return _mm512_dpbf16_ps(s, (__m512bh)a, (__m512bh)a); });
        best[1] = bf16 > best[1] ? bf16 : best[1];
#endif
    }
    std::printf("%.0f %.0f\n", best[0], best[1]);
}
