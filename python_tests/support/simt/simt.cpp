#include <ucontext.h>

#include <csetjmp>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "shadow.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

Device device;
int64_t distances = 0;
void count_distances(int by_warp) { distances += lane() == 0 ? by_warp : 0; }

namespace {

constexpr int kWarp = 32, kValue = 64;
constexpr size_t kStack = 256 * 1024;

struct Fiber {
    ucontext_t start;
    jmp_buf at;
    std::unique_ptr<char[]> stack{new char[kStack]};  // pages that are not used take no memory
    bool begun, finished;
    int exchanges;
};

struct Warp {
    Barrier barrier;
    unsigned synchronised;          // times that all lanes passed wait_for_warp
    char values[2][kWarp][kValue];  // of this exchange and of the one before, which slower lanes may still read
};

std::vector<Fiber> fibers;  // of all blocks of a cluster
std::vector<Warp> warps;
std::vector<uint64_t> shared;
std::vector<Barrier> blocks;
Barrier cluster;
dim3 first_block;  // of the cluster
jmp_buf scheduler;
int current, threads_of_block, words_of_block;
bool progress;
void (*entry)(void*);
void* argument;

void leave() { _longjmp(scheduler, 1); }

void begin() {
    entry(argument);
    fibers[current].finished = progress = true;
    leave();
}

int current_thread() { return current % threads_of_block; }
int current_block() { return current / threads_of_block; }
Warp& current_warp() { return warps[current / kWarp]; }

void tell_shadow() {
    shadow::thread = {uint16_t(current_thread()), uint16_t(current_thread() / kWarp), uint16_t(current_block()),
                      cluster.generation,         blocks[current_block()].generation, current_warp().synchronised};
    shadow::own_stack = {fibers[current].stack.get(), fibers[current].stack.get() + kStack};
}

void resume(int fiber_index) {
    current = fiber_index;
    threadIdx = dim3(unsigned(current_thread()));
    blockIdx = dim3(first_block.x + unsigned(current_block()), first_block.y);
    Fiber& fiber = fibers[current];
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

int lane() { return current_thread() % kWarp; }
int block_in_cluster() { return current_block(); }
int blocks_in_cluster() { return int(blocks.size()); }
unsigned char* shared_of_block(int block) {
    return reinterpret_cast<unsigned char*>(shared.data() + size_t(block) * words_of_block);
}
unsigned char* dynamic_shared() { return shared_of_block(current_block()); }
void wait_for_cluster() { wait(cluster); }
void wait_for_block() { wait(blocks[current_block()]); }
void wait_for_warp() {
    Warp& warp = current_warp();
    wait(warp.barrier, &warp.synchronised);
}

Values exchange(const void* value, int size) {
    Warp& warp = current_warp();
    auto& values = warp.values[fibers[current].exchanges++ % 2];
    std::memcpy(values[lane()], value, size_t(size));
    wait(warp.barrier);
    return {values[0]};
}

void run_cluster(const char* name, int number, int threads, int shared_bytes, bool reversed, bool first,
                 void (*body)(void*), void* context) {
    if (threads % kWarp) throw std::runtime_error(std::string(name) + ": a block must hold whole warps");
    entry = body;
    argument = context;
    const int all = number * threads;
    if (int(fibers.size()) < all) fibers = std::vector<Fiber>(all);
    threads_of_block = threads;
    first_block = blockIdx;
    cluster = {all};
    blocks.assign(number, {threads});
    warps.resize(all / kWarp);
    for (Warp& warp : warps) {
        warp.barrier = {kWarp};
        warp.synchronised = 0;
    }
    // NaN: what a kernel reads before it writes shows.
    words_of_block = (shared_bytes + 15) / 16 * 2;
    shared.assign(size_t(words_of_block) * number, 0xFFFFFFFFFFFFFFFFu);
    forget_copies();
    shadow::start_cluster(first, shared.data(), shared.data() + shared.size());
    for (int i = 0; i < all; ++i) {
        Fiber& fiber = fibers[i];
        fiber.begun = fiber.finished = false;
        fiber.exchanges = 0;
        getcontext(&fiber.start);
        fiber.start.uc_stack = {fiber.stack.get(), 0, kStack};
        makecontext(&fiber.start, begin, 0);
    }
    for (int left = all; left > 0;) {
        progress = false;
        left = 0;
        for (int i = 0; i < all; ++i) {
            const int fiber = reversed ? all - 1 - i : i;
            if (!fibers[fiber].finished) resume(fiber);
            left += !fibers[fiber].finished;
        }
        if (!progress) {
            shadow::end_cluster();
            throw std::runtime_error(std::string(name) + ": threads wait at a barrier that others never reach");
        }
    }
    const std::string race = shadow::end_cluster();
    if (!race.empty()) throw std::runtime_error(std::string(name) + ": " + race);
}

}  // namespace simt

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT void simt_device(bool clusters, bool code_clusters, int processors, int shared_bytes, int least_rows) {
    simt::device = {clusters, code_clusters, processors, shared_bytes, least_rows};
}
EXPORT int64_t simt_distances() { return simt::distances; }
