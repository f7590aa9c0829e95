// Closed tiles: all layers in one kernel, blocks stay and take tile after tile. Open tiles: a kernel per layer, which
// finishes a layer and makes keys and values of the next, since those of a long segment come from several blocks.
#include <cstdlib>
#include <cstring>

#include "cuda/segment_encoder_tile.h"
#include "cuda/segment_encoder_tiles.h"

#ifndef SOPR_MAX_OPEN_TILES  // tests set fewer
#define SOPR_MAX_OPEN_TILES 2048
#endif

namespace sopr::cuda {
namespace {

constexpr int64_t kMaxOpenTiles = SOPR_MAX_OPEN_TILES;  // that the workspace has room for

// Arrays of open tiles, by policy and tile.
struct OpenMemory {
    float* x;                  // (kTileTokens, kWidth)
    unsigned char* images[2];  // keys and values as in shared memory, of even and odd layers
    float* sums;               // (kWidth), of a tile's rows
};

template <class P, int kDim>
__global__ void __launch_bounds__(kTileThreads) closed_kernel(EncoderRun run, bool resident) {
    const int64_t tiles = *run.tiles.count, items = tiles * run.policies, layers = run.p.layers;
    if (int64_t(blockIdx.x) >= items) return;
    const TileMemory<P> memory;
    WeightStream weights(run.layout, run.packed, 0, layers * run.layout.chunks(), resident, memory.slots);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        Tile<P, kDim> tile(run, memory, run.first_policy + item / tiles, item % tiles);
        tile.read_input();
        for (int64_t layer = 0; layer < layers; ++layer) {
            tile.make_keys_and_values(layer, weights);
            tile.attend_to_tile(layer, weights);
            tile.feed_forward(layer, weights);
        }
        if (run.p.pool)
            tile.write_means();
        else
            tile.write_tokens();
    }
    weights.finish();
}

__device__ int length_of(const EncoderRun& run, const Piece& piece) {
    const int32_t* bounds = run.p.offsets + piece.segment + piece.segment / run.p.clusters;
    return bounds[1] - bounds[0];
}

// Copy 16 bytes a thread at a time.
template <class Copy>
__device__ void copy_image(int bytes, const Copy& copy) {
    for (int i = 16 * int(threadIdx.x); i < bytes; i += 16 * kTileThreads) copy(i);
}

// Step s finishes layer s - 1, if there is one, and makes keys and values of layer s, if there is one.
template <class P, int kDim>
__global__ void __launch_bounds__(kTileThreads) open_kernel(EncoderRun run, OpenMemory open, int64_t step) {
    using Memory = TileMemory<P>;
    const int64_t tiles = *run.tiles.count, items = tiles * run.policies, layers = run.p.layers;
    if (int64_t(blockIdx.x) >= items) return;
    const Memory memory;
    const int64_t chunks = run.layout.chunks(), first = step ? (step - 1) * chunks + 4 : 0;
    const int64_t end = step < layers ? step * chunks + 4 : layers * chunks;
    WeightStream weights(run.layout, run.packed, first, end - first, false, memory.slots);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        Tile<P, kDim> tile(run, memory, run.first_policy + item / tiles, item % tiles);
        const Piece start = run.tiles.pieces[item % tiles * kTileWarps];  // its segment is that of all
        float* x = open.x + item * kTileTokens * kWidth;
        if (step == 0) {
            tile.read_input();
        } else {
            const unsigned char* images =
                open.images[(step - 1) % 2] + (item - start.row / kTileTokens) * Memory::kImage;
            const int length = length_of(run, start);
            tile.restore(x);
            tile.attend(step - 1, weights, [&](auto& attention, const auto& q, int column) {
                for (int key = 0; key < length; key += kTileTokens) {
                    __syncthreads();
                    const unsigned char* image = images + key / kTileTokens * int64_t(Memory::kImage);
                    copy_image(Memory::kImage, [&](int i) { copy_async(dynamic_shared() + i, image + i); });
                    end_copies();
                    wait_for_copies<0>();
                    __syncthreads();
                    const int count = length - key < kTileTokens ? length - key : kTileTokens;
                    if (tile.active()) tile.add_keys(attention, q, column, step - 1, 0, key, count);
                }
            });
            tile.feed_forward(step - 1, weights);
        }
        if (step < layers) {
            tile.make_keys_and_values(step, weights);
            unsigned char* image = open.images[step % 2] + item * Memory::kImage;
            copy_image(Memory::kImage, [&](int i) {
                *reinterpret_cast<uint4*>(image + i) = *reinterpret_cast<const uint4*>(dynamic_shared() + i);
            });
            tile.save(x);
        } else if (run.p.pool) {
            tile.sum_rows();
            __syncthreads();
            const int rows = length_of(run, start) - start.row;
            for (int column = threadIdx.x; column < kWidth; column += kTileThreads) {
                float sum = 0;
                for (int warp = 0; warp < kTileWarps && warp * kTileRows < rows; ++warp)
                    sum += memory.sums[warp * kWidth + column];
                open.sums[item * kWidth + column] = sum;
            }
        } else {
            tile.write_tokens();
        }
    }
    weights.finish();
}

// Means of the open segments: block i starts with tile i and does nothing unless a segment starts there.
__global__ void __launch_bounds__(kWidth) open_means_kernel(EncoderRun run, const float* sums) {
    const int64_t tiles = *run.tiles.count;
    for (int64_t item = blockIdx.x; item < tiles * run.policies; item += gridDim.x) {
        const Piece start = run.tiles.pieces[item % tiles * kTileWarps];
        if (start.row != 0) continue;
        const int length = length_of(run, start);
        float sum = 0;
        for (int64_t i = 0; i * kTileTokens < length; ++i) sum += sums[(item + i) * kWidth + threadIdx.x];
        const int64_t policy = run.first_policy + item / tiles;
        run.p.out[(policy * run.p.subsets * run.p.clusters + start.segment) * kWidth + threadIdx.x] =
            sum / float(length);
    }
}

__global__ void clear_kernel(float* x, int64_t count) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x)
        x[i] = 0;
}

// Where an encoder's arrays stand in its workspace, and how much of it is computed at once.
struct Workspace {
    int64_t subsets, policies;  // at once; all policies where tiles are closed
    Plan plan;
    uint32_t* packed;
    OpenMemory open;
    int64_t size = 0;  // in floats

    Workspace(const SegmentEncoder& p, int64_t image_bytes) : base_(p.workspace) {
        plan.closed_per_subset = most_closed_tiles(p.subset_size, p.clusters);
        plan.open_per_subset = most_open_tiles(p.subset_size);
        subsets = at_once(p.subsets, plan.open_per_subset);
        policies = at_once(p.policies, plan.open_per_subset * subsets);
        const int64_t closed = subsets * plan.closed_per_subset, open_tiles = subsets * plan.open_per_subset;
        const PackedWeights layout(p);
        packed = take<uint32_t>(layout.before_layers() + p.layers * layout.layer_words());
        plan.closed.pieces = take<Piece>(2 * closed * kTileWarps);
        plan.open.pieces = take<Piece>(2 * open_tiles * kTileWarps);
        plan.by_subset = take<Piece>(2 * (closed + open_tiles) * kTileWarps);
        plan.counts = take<int32_t>(2 * subsets);
        plan.closed.count = take<int32_t>(1);
        plan.open.count = take<int32_t>(1);
        open.x = take<float>(open_tiles * policies * kTileTokens * kWidth);
        for (auto& images : open.images) images = take<unsigned char>(open_tiles * policies * image_bytes / 4);
        open.sums = take<float>(open_tiles * policies * kWidth);
    }

  private:
    float* base_;

    static int64_t at_once(int64_t number, int64_t open_tiles_each) {
        if (open_tiles_each == 0) return number;
        const int64_t most = kMaxOpenTiles / open_tiles_each < 1 ? 1 : kMaxOpenTiles / open_tiles_each;
        return most < number ? most : number;
    }
    // Multiples of 16 bytes, as cp.async needs.
    template <class T>
    T* take(int64_t words) {
        T* const taken = reinterpret_cast<T*>(base_ + size);
        size += (words + 3) / 4 * 4;
        return taken;
    }
};

template <class P, int kDim>
struct Encoder {
    const SegmentEncoder& p;
    cudaStream_t stream;
    Workspace memory{p, TileMemory<P>::kImage};

    void run() const {
        const int64_t floats = p.policies * p.subsets * (p.pool ? p.clusters : p.subset_size) * kWidth;
        launch("segment_encoder clear", clear_kernel, (floats + 4095) / 4096, 1, 256, stream, p.out, floats);
        pack_weights(p, memory.packed, stream);
        for (int64_t first = 0; first < p.subsets; first += memory.subsets) {
            const int64_t subsets = p.subsets - first < memory.subsets ? p.subsets - first : memory.subsets;
            make_plan(p, first, subsets, memory.plan, stream);
            if (memory.plan.open_per_subset)  // first: long segments take longest
                for (int64_t policy = 0; policy < p.policies; policy += memory.policies)
                    run_open(policy, subsets * memory.plan.open_per_subset);
            run_closed(subsets * memory.plan.closed_per_subset);
        }
    }

  private:
    void run_closed(int64_t tiles) const {
        const EncoderRun run = {p, PackedWeights(p), memory.packed, memory.plan.closed, 0, p.policies};
        const int64_t chunk_bytes = run.layout.words_per_chunk * int64_t(sizeof(uint32_t));
        const int64_t all = TileMemory<P>::kFixed + p.layers * run.layout.chunks() * chunk_bytes;
        const bool resident = all <= shared_memory_limit();
        const int bytes = resident ? int(all) : int(TileMemory<P>::kFixed + kSlots * chunk_bytes);
        const int64_t blocks = blocks_at_once(closed_kernel<P, kDim>, kTileThreads, bytes), items = tiles * p.policies;
        launch_with_memory("segment_encoder closed", closed_kernel<P, kDim>, items < blocks ? items : blocks, 1,
                           kTileThreads, bytes, stream, run, resident);
    }

    void run_open(int64_t first_policy, int64_t tiles) const {
        const int64_t policies =
            p.policies - first_policy < memory.policies ? p.policies - first_policy : memory.policies;
        const EncoderRun run = {p, PackedWeights(p), memory.packed, memory.plan.open, first_policy, policies};
        const int bytes = TileMemory<P>::kFixed + kSlots * run.layout.words_per_chunk * int(sizeof(uint32_t));
        const int64_t most = blocks_at_once(open_kernel<P, kDim>, kTileThreads, bytes), items = tiles * policies;
        const int64_t blocks = items < most ? items : most;
        for (int64_t step = 0; step <= p.layers; ++step)
            launch_with_memory("segment_encoder open", open_kernel<P, kDim>, blocks, 1, kTileThreads, bytes, stream,
                               run, memory.open, step);
        if (p.pool)
            launch("segment_encoder open means", open_means_kernel, blocks, 1, kWidth, stream, run,
                   static_cast<const float*>(memory.open.sums));
    }
};

template <class P>
void encode(const SegmentEncoder& p, cudaStream_t stream) {
    switch (p.width / p.heads) {
        case 8:
            return Encoder<P, 8>{p, stream}.run();
        case 16:
            return Encoder<P, 16>{p, stream}.run();
        default:
            return Encoder<P, 32>{p, stream}.run();
    }
}

}  // namespace

bool tiles_fit(const SegmentEncoder& p) {
    const char* const wish = std::getenv("SOPR_FAST_TENSOR_CORES");
    if (wish && std::strcmp(wish, "0") == 0) return false;
    const int64_t dim = p.width / p.heads;
    return p.width == kWidth && (dim == 8 || dim == 16 || dim == 32) && p.feedforward % 32 == 0 && p.layers > 0;
}

int64_t segment_encoder_tiles_workspace(const SegmentEncoder& p) {
    SegmentEncoder sized = p;
    sized.workspace = nullptr;
    return Workspace(sized, p.bf16 ? TileMemory<Bf16>::kImage : TileMemory<Tf32>::kImage).size;
}

void segment_encoder_tiles(const SegmentEncoder& p, cudaStream_t stream) {
    if (p.policies * p.subsets * (p.pool ? p.clusters : p.subset_size) == 0) return;
    p.bf16 ? encode<Bf16>(p, stream) : encode<Tf32>(p, stream);
}

}  // namespace sopr::cuda
