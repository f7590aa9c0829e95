#include "cpu/pool.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
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

    void work(int worker) {
        for (int64_t i = next++; i < items; i = next++) task(context, i, worker);
    }
};

class Pool {
  public:
    void run(Job& job, int threads) {
        {
            std::unique_lock lock(state_);
            while (int(threads_.size()) < threads - 1) {
                const int worker = int(threads_.size()) + 1;
                threads_.emplace_back([this, worker, seen = generation_] { loop(worker, seen); });
            }
            job_ = &job;
            wanted_ = running_ = threads - 1;
            ++generation_;
        }
        wake_.notify_all();
        job.work(0);
        std::unique_lock lock(state_);
        done_.wait(lock, [this] { return running_ == 0; });
        job_ = nullptr;
    }

    std::mutex caller;

  private:
    void loop(int worker, uint64_t seen) {
        std::unique_lock lock(state_);
        for (;;) {
            wake_.wait(lock, [&] { return generation_ != seen; });
            seen = generation_;
            if (worker > wanted_) continue;
            Job* job = job_;
            lock.unlock();
            job->work(worker);
            lock.lock();
            if (--running_ == 0) done_.notify_one();
        }
    }

    std::mutex state_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> threads_;
    Job* job_ = nullptr;
    int wanted_ = 0, running_ = 0;
    uint64_t generation_ = 0;
};

// A forked child has none of its parent's threads and perhaps a locked mutex: it gets a new pool. Pools are never
// destroyed, since their threads may outlive static destruction.
Pool& pool() {
    static std::atomic<Pool*> current{nullptr};
    static std::atomic<pid_t> owner{0};
    static std::atomic_flag making = ATOMIC_FLAG_INIT;
    if (owner.load() != getpid()) {
        while (making.test_and_set()) std::this_thread::yield();
        if (owner.load() != getpid()) {
            current = new Pool;
            owner = getpid();
        }
        making.clear();
    }
    return *current.load();
}

}  // namespace

void parallel_for(int64_t items, int threads, Task task, void* context) {
    if (threads > items) threads = int(items);
    if (threads > 1) {
        Pool& shared = pool();
        std::unique_lock lock(shared.caller, std::try_to_lock);
        if (lock) {
            Job job{task, context, items};
            shared.run(job, threads);
            return;
        }
    }
    for (int64_t i = 0; i < items; ++i) task(context, i, 0);
}

}  // namespace sopr
