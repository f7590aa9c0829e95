// Scratch memory of a kernel: one allocation, divided into arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "cpu/simd.h"

namespace sopr::SOPR_LEVEL {

// A bump allocator. Without memory it only measures: take() returns null and bytes() counts.
class Arena {
  public:
    explicit Arena(void* memory = nullptr) : memory_(static_cast<char*>(memory)) {}

    // Arrays start on cache lines. A whole vector may be read from the last element of an array.
    template <class T = float>
    T* take(int64_t count) {
        T* array = memory_ ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
        used_ += round_up(count * int64_t(sizeof(T)), kLine) + kLine;
        return array;
    }
    int64_t bytes() const { return used_; }
    int64_t floats() const { return used_ / int64_t(sizeof(float)); }
    char* next() const { return memory_ ? memory_ + used_ : nullptr; }

  private:
    static constexpr int64_t kLine = 64;
    char* memory_;
    int64_t used_ = 0;
};

// Memory of `workers` workers, `bytes` each, on cache lines of their own.
class WorkerMemory {
  public:
    WorkerMemory(int64_t bytes, int workers)
        : bytes_(round_up(bytes, 64)),
          memory_(static_cast<char*>(std::aligned_alloc(64, size_t(bytes_) * size_t(workers) + 64))) {
        if (!memory_) throw std::bad_alloc();
    }
    ~WorkerMemory() { std::free(memory_); }
    WorkerMemory(const WorkerMemory&) = delete;
    WorkerMemory& operator=(const WorkerMemory&) = delete;

    Arena arena(int worker) const { return Arena(memory_ + worker * bytes_); }

  private:
    int64_t bytes_;
    char* memory_;
};

}  // namespace sopr::SOPR_LEVEL
