#include <ucontext.h>

#include <csetjmp>
#include <stdexcept>
#include <vector>

#include "cuda_runtime.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {
namespace {

constexpr int kWarp = 32;
constexpr size_t kStack = 64 * 1024;

struct Fiber {
    ucontext_t start;
    jmp_buf at;
    std::vector<char> stack = std::vector<char>(kStack);
    bool begun, finished;
};

std::vector<Fiber> fibers;
std::vector<Barrier> warps;
std::vector<uint64_t> slots;
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

void resume(int thread) {
    current = thread;
    threadIdx = dim3(unsigned(thread));
    Fiber& fiber = fibers[thread];
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = progress = true;
    setcontext(&fiber.start);
}

}  // namespace

int lane() { return current % kWarp; }
Barrier& block_barrier() { return block; }
Barrier& warp_barrier() { return warps[current / kWarp]; }
uint64_t& exchange(int lane) { return slots[current / kWarp * kWarp + lane]; }

void wait(Barrier& barrier) {
    const unsigned generation = barrier.generation;
    progress = true;
    if (++barrier.arrived == barrier.size) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == generation)
        if (!_setjmp(fibers[current].at)) leave();
}

void run_block(int threads, bool reversed, void (*body)(void*), void* context) {
    entry = body;
    argument = context;
    if (int(fibers.size()) < threads) fibers = std::vector<Fiber>(threads);
    block = {threads};
    warps.assign((threads + kWarp - 1) / kWarp, {kWarp});
    slots.assign(warps.size() * kWarp, 0);
    for (int i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.begun = fiber.finished = false;
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
        if (!progress) throw std::runtime_error("threads wait at a barrier that others never reach");
    }
}

}  // namespace simt
