#include "cpu/pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace sopr {
namespace {

struct Job {
    Task task;
    void* context;
    int64_t items;
    std::atomic<int64_t> next{0};

    // An exception would leave the other threads in a job that is gone: noexcept ends the process instead.
    void work(int worker) noexcept {
        for (int64_t i = next++; i < items; i = next++) task(context, i, worker);
    }
};

class Pool {
  public:
    // One owner at a time; a flag, since a thread must not ask again for a mutex that it has.
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
        job.work(0);
        lock.lock();
        job_ = nullptr;  // every item is taken: who wakes now comes too late, and is not waited for
        done_.wait(lock, [this] { return running_ == 0; });
    }

  private:
    void grow(int workers) {
        try {
            while (int(threads_.size()) < workers)
                threads_.emplace_back([this, worker = int(threads_.size()) + 1] { loop(worker); });
        } catch (const std::exception&) {
            // The system has no more threads, or no memory for them, to give: those there are do the work.
        }
    }

    void loop(int worker) {
        uint64_t seen = 0;
        std::unique_lock lock(state_);
        for (;;) {
            wake_.wait(lock, [&] { return job_ && generation_ != seen && worker <= wanted_; });
            seen = generation_;
            Job* job = job_;
            ++running_;
            lock.unlock();
            job->work(worker);
            lock.lock();
            if (--running_ == 0) done_.notify_one();
        }
    }

    std::atomic_flag owned_ = ATOMIC_FLAG_INIT;
    std::mutex state_;  // guards what follows
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
    Job* job_ = nullptr;
    int wanted_ = 0, running_ = 0;
    uint64_t generation_ = 0;
};

// Pools are never destroyed: their threads may outlive static destruction.
std::atomic<Pool*> current{nullptr};

// A forked child has none of its parent's threads and perhaps a locked mutex: it makes a pool of its own.
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

void parallel_for(int64_t items, int threads, Task task, void* context) {
    if (threads > items) threads = int(items);
    if (threads > 1) {
        Pool& shared = pool();
        if (shared.acquire()) {
            Job job{task, context, items};
            shared.run(job, threads);
            shared.release();
            return;
        }
    }
    for (int64_t i = 0; i < items; ++i) task(context, i, 0);
}

}  // namespace sopr
