#include "cpu/pool.h"

#include <pthread.h>
#include <time.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace sopr {
namespace {

constexpr int64_t kPollMilliseconds = 50;
constexpr int kSpins = 1000;  // tens of microseconds, as a thread takes to wake up

thread_local KernelCall* this_call = nullptr;
thread_local bool polls_call = false;  // this thread created this_call

std::atomic<bool> is_shut_down{false};
std::atomic<int> blocked{0};
thread_local bool survives = false;  // this thread called shut_down()

int64_t milliseconds() {
#if defined(CLOCK_MONOTONIC_COARSE)
    timespec now;  // ticks every few milliseconds, but costs a quarter of a precise clock
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
#else
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
#endif
}

bool is_cancelled(KernelCall* call, bool poll) { return call && (poll ? call->poll() : call->cancelled()); }

// Waits a moment, since what ends the wait is often near.
template <class Done>
void spin(const Done& done) {
    for (int i = 0; i < kSpins && !done(); ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

struct Job {
    Task task;
    void* context;
    int64_t items;
    KernelCall* call;
    std::atomic<int64_t> next{0};

    // noexcept: an exception would leave other threads with a job that no longer exists.
    void work(int worker, bool poll) noexcept {
        for (int64_t i = next++; i < items && !is_cancelled(call, poll); i = next++) task(context, i, worker);
    }
};

class Pool {
  public:
    // One owner at a time. A flag instead of a mutex, since the owner may ask again from inside a task.
    bool acquire() { return !owned_.test_and_set(std::memory_order_acquire); }
    void release() { owned_.clear(std::memory_order_release); }

    void run(Job& job, int threads) {
        std::unique_lock lock(state_);
        grow(threads - 1);
        job_ = &job;
        wanted_ = threads - 1;
        ++generation_;
        lock.unlock();
        wake_.notify_all();
        job.work(0, polls_call);
        spin([this] { return running_ == 0; });
        lock.lock();
        job_ = nullptr;  // every item is taken: threads that wake now find nothing to do
        while (!done_.wait_for(lock, std::chrono::milliseconds(kPollMilliseconds), [this] { return running_ == 0; })) {
            lock.unlock();
            cancelled();  // polls
            lock.lock();
        }
    }

  private:
    void grow(int workers) {
        try {
            while (int(threads_.size()) < workers)
                threads_.emplace_back([this, worker = int(threads_.size()) + 1] { loop(worker); });
        } catch (const std::exception&) {
            // The system refuses more threads or memory: the existing threads do the work.
        }
    }

    void loop(int worker) {
        uint64_t seen = 0;
        std::unique_lock lock(state_, std::defer_lock);
        for (;;) {
            spin([&] { return generation_ != seen; });
            lock.lock();
            wake_.wait(lock, [&] { return job_ && generation_ != seen && worker <= wanted_; });
            seen = generation_;
            Job* job = job_;
            ++running_;
            lock.unlock();
            this_call = job->call;
            job->work(worker, false);
            this_call = nullptr;
            lock.lock();
            if (--running_ == 0) done_.notify_one();
            lock.unlock();
        }
    }

    std::atomic_flag owned_ = ATOMIC_FLAG_INIT;
    std::mutex state_;  // guards the members below
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
    Job* job_ = nullptr;
    int wanted_ = 0;
    std::atomic<int> running_{0};
    std::atomic<uint64_t> generation_{0};
};

// Pools are never destroyed: their threads may outlive static destruction.
std::atomic<Pool*> current{nullptr};

// A forked child lacks its parent's threads, and may inherit a locked mutex: it creates a new pool.
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { current = nullptr; });

Pool& pool() {
    Pool* pool = current;
    if (pool) return *pool;
    Pool* made = new Pool;
    if (current.compare_exchange_strong(pool, made)) return *made;
    delete made;
    return *pool;
}

}  // namespace

KernelCall::KernelCall(bool (*interrupted)())
    : interrupted_(interrupted),
      next_poll_(milliseconds() + kPollMilliseconds),
      outer_(this_call),
      outer_polls_(polls_call) {
    this_call = this;
    polls_call = true;
    std::fegetenv(&environment_);
    std::fesetenv(FE_DFL_ENV);
}

KernelCall::~KernelCall() {
    std::fesetenv(&environment_);
    this_call = outer_;
    polls_call = outer_polls_;
}

bool KernelCall::poll() {
    if (cancelled() || milliseconds() < next_poll_) return cancelled();
    if ((is_shut_down && !survives) || interrupted_()) cancelled_.store(true, std::memory_order_relaxed);
    next_poll_ = milliseconds() + kPollMilliseconds;
    return cancelled();
}

bool cancelled() { return is_cancelled(this_call, polls_call); }

void shut_down() {
    survives = true;
    is_shut_down = true;
}

void block_if_shut_down() {
    if (!is_shut_down || survives) return;
    ++blocked;
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

int blocked_threads() { return blocked; }

void parallel_for(int64_t items, int threads, Task task, void* context) {
    if (threads > items) threads = int(items);
    if (threads > 1) {
        Pool& shared = pool();
        if (shared.acquire()) {
            Job job{task, context, items, this_call};
            shared.run(job, threads);
            shared.release();
            return;
        }
    }
    for (int64_t i = 0; i < items && !cancelled(); ++i) task(context, i, 0);
}

}  // namespace sopr
