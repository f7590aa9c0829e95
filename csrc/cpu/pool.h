// The thread pool of all kernels: created on first use and again in a forked child. Kernel calls can be cancelled.
#pragma once

#include <atomic>
#include <cfenv>
#include <cstdint>

namespace sopr {

using Task = void (*)(void* context, int64_t item, int worker);

// Call task(context, i, worker) once for every i in [0, items) on at most `threads` threads, the calling one included.
// Items start in ascending order; worker is in [0, threads). While another caller owns the pool, or inside a task, all
// items run on the calling thread: results must not depend on the thread. Tasks must not throw. Once the kernel call is
// cancelled, the remaining items are skipped.
void parallel_for(int64_t items, int threads, Task task, void* context);

template <class Body>
void parallel_for(int64_t items, int threads, Body&& body) {
    parallel_for(
        items, threads,
        [](void* context, int64_t item, int worker) { (*static_cast<decltype(&body)>(context))(item, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

// Whether the kernel call of this thread is cancelled; once true, it stays true. Long tasks ask between tiles, and
// return early. Nothing computed after a cancelled parallel_for may be used, not even as an index.
bool cancelled();

// Asks cancelled() after about every 4 million operations.
class Work {
  public:
    // Adds operations; whether the kernel call is cancelled.
    bool cancelled_after(int64_t operations) {
        if ((operations_ += operations) < kBetweenPolls) return false;
        operations_ = 0;
        return cancelled();
    }

  private:
    static constexpr int64_t kBetweenPolls = 1 << 22;  // about a millisecond
    int64_t operations_ = 0;
};

// A kernel call, alive while its kernel runs. The thread that created it calls `interrupted` about every 50 ms while it
// works or waits; a true result cancels the call. Kernels compute in the default floating-point environment, which the
// threads of the pool inherit: a caller that flushes denormal numbers to 0 would disagree with them.
class KernelCall {
  public:
    explicit KernelCall(bool (*interrupted)());
    ~KernelCall();
    KernelCall(const KernelCall&) = delete;
    KernelCall& operator=(const KernelCall&) = delete;

    bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
    bool poll();  // on the creating thread only; returns cancelled()

  private:
    bool (*interrupted_)();
    std::atomic<bool> cancelled_{false};
    int64_t next_poll_;  // milliseconds
    KernelCall* outer_;
    bool outer_polls_;
    std::fenv_t environment_;  // of the caller
};

// At interpreter exit: cancel the kernel calls of all other threads for good. Those threads block in
// block_if_shut_down(), since a thread that asks for the GIL of a finalizing interpreter would abort the process.
void shut_down();
void block_if_shut_down();
int blocked_threads();

}  // namespace sopr
