// A small thread pool: lazily made, re-made after fork, shared by all kernels.
#pragma once

#include <cstdint>

namespace sopr {

using Task = void (*)(void* context, int64_t item, int worker);

// Calls task(context, i, worker) once for every i in [0, items), on at most `threads` threads, the caller's included.
// Items are handed out in ascending order; worker is in [0, threads). While another caller has the pool, or from
// inside a task, everything runs on the calling thread: results must not depend on who ran what. Tasks must not throw.
void parallel_for(int64_t items, int threads, Task task, void* context);

template <class Body>
void parallel_for(int64_t items, int threads, Body&& body) {
    parallel_for(
        items, threads,
        [](void* context, int64_t item, int worker) { (*static_cast<decltype(&body)>(context))(item, worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace sopr
