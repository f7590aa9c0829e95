// What the forward and the backward pass on tensor cores share next to tiles: their workspace, and segments in several
// tiles ("open").
#pragma once

#include "cuda/segment_encoder_tile.h"

namespace sopr::cuda {

// Arrays of open tiles, by policy and tile.
struct OpenMemory {
    float* x;                  // (kTileTokens, kWidth)
    unsigned char* images[2];  // keys and values as in shared memory, of even and odd layers
    float* sums;               // (kWidth), of a tile's rows

    // Chosen without an index, which would put the arrays in local memory.
    __device__ unsigned char* image(int64_t layer) const { return layer % 2 ? images[1] : images[0]; }
};

// Places of arrays in the workspace, and how much is computed at once.
struct TileWorkspace {
    int64_t subsets, policies;  // at once; all policies where tiles are closed
    Plan plan;
    uint32_t* packed;
    OpenMemory open;
    int64_t open_tiles;  // at once
    int64_t size = 0;    // in floats

    TileWorkspace(const SegmentEncoder& p, int64_t packed_words, int64_t image_bytes, int64_t most_tiles)
        : base_(p.workspace) {
        plan.closed_per_subset = most_closed_tiles(p.subset_size, p.clusters);
        plan.open_per_subset = most_open_tiles(p);
        subsets = at_once(p.subsets, plan.open_per_subset, most_tiles);
        policies = at_once(p.policies, plan.open_per_subset * subsets, most_tiles);
        const int64_t closed = subsets * plan.closed_per_subset, open_per_policy = subsets * plan.open_per_subset;
        open_tiles = open_per_policy * policies;
        packed = take<uint32_t>(packed_words);
        plan.closed.pieces = take<Piece>(2 * closed * kTileWarps);
        plan.open.pieces = take<Piece>(2 * open_per_policy * kTileWarps);
        plan.by_subset = take<Piece>(2 * (closed + open_per_policy) * kTileWarps);
        plan.counts = take<int32_t>(2 * subsets);
        plan.closed.count = take<int32_t>(1);
        plan.open.count = take<int32_t>(1);
        open.x = take<float>(open_tiles * kTileTokens * kWidth);
        for (auto& images : open.images) images = take<unsigned char>(open_tiles * image_bytes / 4);
        open.sums = take<float>(open_tiles * kWidth);
    }

  protected:
    // Multiples of 16 bytes, as cp.async needs.
    template <class T>
    T* take(int64_t words) {
        T* const taken = reinterpret_cast<T*>(base_ + size);
        size += (words + 3) / 4 * 4;
        return taken;
    }

  private:
    float* base_;

    static int64_t at_once(int64_t number, int64_t open_tiles_each, int64_t most_tiles) {
        if (open_tiles_each == 0) return number;
        const int64_t most = most_tiles / open_tiles_each < 1 ? 1 : most_tiles / open_tiles_each;
        return most < number ? most : number;
    }
};

__device__ inline int length_of(const EncoderRun& run, const Piece& piece) {
    const int32_t* bounds = run.p.offsets + piece.segment + piece.segment / run.p.clusters;
    return bounds[1] - bounds[0];
}

// Copy 16 bytes a thread at a time.
template <class Copy>
__device__ void copy_image(int bytes, const Copy& copy) {
    for (int i = 16 * int(threadIdx.x); i < bytes; i += 16 * kTileThreads) copy(i);
}

// Copy memory to shared memory, after all threads have read what was there.
__device__ inline void stage(void* to, const void* from, int bytes) {
    copy_image(bytes, [&](int i) { copy_async(static_cast<char*>(to) + i, static_cast<const char*>(from) + i); });
}
__device__ inline void wait_for_stage() {
    end_copies();
    wait_for_copies<0>();
    __syncthreads();
}

// Stage the keys and values of 32 columns, half of an image, in their places.
template <class P>
__device__ void stage_columns(const unsigned char* image, int column) {
    using Memory = TileMemory<P>;
    constexpr int kElement = int(sizeof(typename P::Element)), kPieces = 32 * kElement / 16;
    for (int i = int(threadIdx.x); i < kTileTokens * kPieces; i += kTileThreads) {
        const int at = (i / kPieces * Memory::kKeyPitch + column) * kElement + i % kPieces * 16;
        copy_async(dynamic_shared() + at, image + at);
    }
    const int values = (kTileTokens * Memory::kKeyPitch + column * Memory::kValuePitch) * kElement;
    stage(dynamic_shared() + values, image + values, 32 * Memory::kValuePitch * kElement);
}

// Chunks that a step needs: see run_open_step.
__device__ inline Chunks chunks_of_step(const EncoderRun& run, int64_t step) {
    const int64_t layers = run.p.layers, chunks = run.layout.chunks(), first = step ? (step - 1) * chunks + 4 : 0;
    return {first, (step < layers ? step * chunks + 4 : layers * chunks) - first};
}

// Step s of an open tile finishes layer s - 1, if there is one, and makes keys and values of layer s, if there is one.
template <class P, int kDim, class Kept>
__device__ void run_open_step(Tile<P, kDim, Kept>& tile, WeightStream<P>& weights, const EncoderRun& run,
                              const OpenMemory& open, int64_t item, int64_t step) {
    using Memory = TileMemory<P>;
    const Piece start = run.tiles.pieces[item % *run.tiles.count * kTileWarps];  // its segment is that of all
    float* x = open.x + item * kTileTokens * kWidth;
    if (step == 0) {
        tile.read_input();
    } else {
        const unsigned char* images = open.image(step - 1) + (item - start.row / kTileTokens) * Memory::kImage;
        const int length = length_of(run, start);
        tile.restore(x);
        tile.attend(step - 1, weights, [&](auto& attention, const auto& q, int column) {
            for (int key = 0; key < length; key += kTileTokens) {
                __syncthreads();
                stage_columns<P>(images + key / kTileTokens * int64_t(Memory::kImage), column);
                wait_for_stage();
                const int count = length - key < kTileTokens ? length - key : kTileTokens;
                if (tile.active()) tile.add_keys(attention, q, column, step - 1, 0, key, count);
            }
        });
        tile.feed_forward(step - 1, weights);
    }
    if (step == run.p.layers) return;
    tile.make_keys_and_values(step, weights);
    unsigned char* image = open.image(step) + item * Memory::kImage;
    copy_image(Memory::kImage, [&](int i) {
        *reinterpret_cast<uint4*>(image + i) = *reinterpret_cast<const uint4*>(dynamic_shared() + i);
    });
    tile.save(x);
}

}  // namespace sopr::cuda
