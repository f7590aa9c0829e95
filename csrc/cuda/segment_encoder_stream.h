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
class WeightStream {
  public:
    // With `resident`, `slots` has room for all chunks, which are copied once.
    __device__ WeightStream(const PackedWeights& layout, const uint32_t* packed, const Chunks& chunks, bool resident,
                            uint32_t* slots)
        : layout_(layout),
          packed_(packed),
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
        const int words = layout_.words_per_chunk;
        const int chunk = used_++;
        if (resident_) return slots_ + chunk % number_ * words;
        wait_for_copies<kSlots - 2>();
        __syncthreads();
        copy((chunk + kSlots - 1) % number_, (chunk + kSlots - 1) % kSlots);
        return slots_ + chunk % kSlots * words;
    }

    // Before the block ends.
    __device__ void finish() { wait_for_copies<0>(); }

  private:
    __device__ void copy(int chunk, int slot) {
        const int words = layout_.words_per_chunk;
        const int number = chunk < before_ ? first_ + chunk : then_ + chunk - before_;
        const uint32_t* from = packed_ + layout_.place_of_chunk(number);
        for (int i = 4 * int(threadIdx.x); i < words; i += 4 * kTileThreads)
            copy_async(slots_ + slot * words + i, from + i);
        end_copies();
    }

    const PackedWeights layout_;
    const uint32_t* packed_;
    uint32_t* slots_;
    int first_, then_, before_, number_, used_ = 0;
    bool resident_;
};

}  // namespace sopr::cuda
