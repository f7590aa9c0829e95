#include <ucontext.h>

#include <csetjmp>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "shadow.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {
namespace {

constexpr int kWarp = 32, kValue = 64;
constexpr size_t kStack = 256 * 1024;

struct Fiber {
    ucontext_t start;
    jmp_buf at;
    std::vector<char> stack = std::vector<char>(kStack);
    bool begun, finished;
    int exchanges;
};

struct Warp {
    Barrier barrier;
    unsigned synchronised;          // times that all lanes passed wait_for_warp
    char values[2][kWarp][kValue];  // of this exchange and of the one before, which slower lanes may still read
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
std::vector<uint64_t> shared;
Barrier block;
jmp_buf scheduler;
int current;
bool progress;
void (*entry)(void*);
void* argument;

void leave() { _longjmp(scheduler, 1); }

void begin() {
    entry(argument);
    fibers[current].finished = progress = true;
    leave();
}

void tell_shadow() {
    shadow::thread = {uint16_t(current), uint16_t(current / kWarp), block.generation,
                      warps[current / kWarp].synchronised};
    shadow::own_stack = {fibers[current].stack.data(), fibers[current].stack.data() + kStack};
}

void resume(int thread) {
    current = thread;
    threadIdx = dim3(unsigned(thread));
    Fiber& fiber = fibers[thread];
    if (_setjmp(scheduler)) return;
    tell_shadow();
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = progress = true;
    setcontext(&fiber.start);
}

void wait(Barrier& barrier, unsigned* counter = nullptr) {
    const unsigned generation = barrier.generation;
    progress = true;
    if (++barrier.arrived == barrier.size) {
        barrier.arrived = 0;
        ++barrier.generation;
        if (counter) ++*counter;
        tell_shadow();
        return;
    }
    while (barrier.generation == generation)
        if (!_setjmp(fibers[current].at)) leave();
}

}  // namespace

int lane() { return current % kWarp; }
unsigned char* dynamic_shared() { return reinterpret_cast<unsigned char*>(shared.data()); }
void wait_for_block() { wait(block); }
void wait_for_warp() {
    Warp& warp = warps[current / kWarp];
    wait(warp.barrier, &warp.synchronised);
}

Values exchange(const void* value, int size) {
    Warp& warp = warps[current / kWarp];
    auto& values = warp.values[fibers[current].exchanges++ % 2];
    std::memcpy(values[lane()], value, size_t(size));
    wait(warp.barrier);
    return {values[0]};
}

void run_block(const char* name, int threads, int shared_bytes, bool reversed, bool first, void (*body)(void*),
               void* context) {
    entry = body;
    argument = context;
    if (int(fibers.size()) < threads) fibers = std::vector<Fiber>(threads);
    block = {threads};
    warps.resize((threads + kWarp - 1) / kWarp);
    for (Warp& warp : warps) {
        warp.barrier = {kWarp};
        warp.synchronised = 0;
    }
    // NaN: what a kernel reads before it writes shows.
    shared.assign(size_t(shared_bytes + 15) / 16 * 2, 0xFFFFFFFFFFFFFFFFu);
    forget_copies();
    shadow::start_block(first, shared.data(), shared.data() + shared.size());
    for (int i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.begun = fiber.finished = false;
        fiber.exchanges = 0;
        getcontext(&fiber.start);
        fiber.start.uc_stack = {fiber.stack.data(), 0, kStack};
        makecontext(&fiber.start, begin, 0);
    }
    for (int left = threads; left > 0;) {
        progress = false;
        left = 0;
        for (int i = 0; i < threads; ++i) {
            const int thread = reversed ? threads - 1 - i : i;
            if (!fibers[thread].finished) resume(thread);
            left += !fibers[thread].finished;
        }
        if (!progress) {
            shadow::end_block();
            throw std::runtime_error(std::string(name) + ": threads wait at a barrier that others never reach");
        }
    }
    const std::string race = shadow::end_block();
    if (!race.empty()) throw std::runtime_error(std::string(name) + ": " + race);
}

}  // namespace simt
