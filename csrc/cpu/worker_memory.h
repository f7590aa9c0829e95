// Memory that a kernel needs while it runs: one aligned allocation, handed out in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "cpu/simd.h"

namespace sopr::SOPR_LEVEL {

// Hands out arrays one after the other, each on its own cache lines. From address 0 it only measures.
class Arrays {
  public:
    explicit Arrays(uintptr_t address) : begin_(address), next_(address) {}

    template <class T>
    T* take(size_t count) {
        T* array = reinterpret_cast<T*>(next_);
        next_ += round_up(count * sizeof(T), 64);
        return array;
    }
    size_t bytes() const { return next_ - begin_; }

  private:
    uintptr_t begin_, next_;
};

// `pieces` equal pieces of memory, one for each worker, each on its own cache lines.
class WorkerMemory {
  public:
    WorkerMemory(size_t bytes, int pieces)
        : bytes_(round_up(bytes, 64)), memory_(std::aligned_alloc(64, bytes_ * size_t(pieces) + 64)) {
        if (!memory_) throw std::bad_alloc();
    }
    ~WorkerMemory() { std::free(memory_); }
    WorkerMemory(const WorkerMemory&) = delete;
    WorkerMemory& operator=(const WorkerMemory&) = delete;

    Arrays piece(int index) const { return Arrays(reinterpret_cast<uintptr_t>(memory_) + size_t(index) * bytes_); }

  private:
    size_t bytes_;
    void* memory_;
};

}  // namespace sopr::SOPR_LEVEL
