// Weights of the layers on their way to shared memory, a chunk at a time, while earlier chunks are used.
#pragma once

#include "cuda/segment_encoder_plan.h"

namespace sopr::cuda {

constexpr int kTileThreads = kTileWarps * kWarpSize;
constexpr int kSlots = 3;  // one in use, one arriving, one that slower warps may still read

// Chunks first : first + number, then `more` chunks from `then` on.
struct Chunks {
    int64_t first, number, then = 0, more = 0;
};

// Chunks, over and over. Every thread of a block makes the same calls.
template <class P>
class WeightStream {
  public:
    // With `resident`, `slots` has room for all chunks, which are copied once.
    __device__ WeightStream(const PackedWeights& layout, const uint32_t* packed, const Chunks& chunks, bool resident,
                            uint32_t* slots)
        : packed_(packed + layout.before_chunks()),
          slots_(slots),
          first_(int(chunks.first)),
          then_(int(chunks.then)),
          before_(int(chunks.number)),
          number_(int(chunks.number + chunks.more)),
          resident_(resident) {
        for (int i = 0; i < (resident ? number_ : kSlots - 1); ++i) copy(i, i);
        if (!resident) return;
        wait_for_copies<0>();
        __syncthreads();
    }

    // The next chunk in shared memory, until the next call. Includes a barrier unless resident.
    __device__ const uint32_t* next() {
        const int slot = slot_;
        slot_ = after(slot, resident_ ? number_ : kSlots);
        if (!resident_) {
            wait_for_copies<kSlots - 2>();
            __syncthreads();
            copy(arriving_, slot ? slot - 1 : kSlots - 1);
            arriving_ = after(arriving_, number_);
        }
        return slots_ + slot * kWords;
    }

    // Before the block ends.
    __device__ void finish() { wait_for_copies<0>(); }

  private:
    static constexpr int kWords = kChunkWords<P>;
    static_assert(kWords % (4 * kTileThreads) == 0);

    __device__ static int after(int i, int number) { return i + 1 < number ? i + 1 : 0; }

    __device__ void copy(int chunk, int slot) {
        const int64_t number = chunk < before_ ? first_ + chunk : then_ + chunk - before_;
        const int first = 4 * int(threadIdx.x);
#pragma unroll
        for (int i = 0; i < kWords; i += 4 * kTileThreads)
            copy_async(slots_ + slot * kWords + first + i, packed_ + number * kWords + first + i);
        end_copies();
    }

    const uint32_t* packed_;
    uint32_t* slots_;
    int first_, then_, before_, number_;
    int slot_ = 0, arriving_ = kSlots - 1;  // slot of the next chunk, and the chunk to copy next
    bool resident_;
};

}  // namespace sopr::cuda
