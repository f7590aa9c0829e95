// Closed tiles: all layers in one kernel, blocks stay and take tile after tile. Open tiles: a kernel per layer, which
// finishes a layer and makes keys and values of the next, since those of a long segment come from several blocks.
#include "cuda/segment_encoder_kinds.h"
#include "cuda/segment_encoder_open.h"

#ifndef SOPR_MAX_OPEN_TILES  // tests set fewer
#define SOPR_MAX_OPEN_TILES 2048
#endif

namespace sopr::cuda {
namespace {

constexpr int64_t kMaxOpenTiles = SOPR_MAX_OPEN_TILES;  // that the workspace has room for

template <class P, int kDim>
__global__ void __launch_bounds__(kTileThreads) closed_kernel(EncoderRun run, bool resident) {
    const int64_t tiles = *run.tiles.count, items = tiles * run.policies, layers = run.p.layers;
    if (int64_t(blockIdx.x) >= items) return;
    const TileMemory<P> memory;
    WeightStream<P> weights(run.layout, run.packed, {0, layers * run.layout.chunks()}, resident, memory.slots);
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

template <class P, int kDim>
__global__ void __launch_bounds__(kTileThreads) open_kernel(EncoderRun run, OpenMemory open, int64_t step) {
    const int64_t tiles = *run.tiles.count, items = tiles * run.policies, layers = run.p.layers;
    if (int64_t(blockIdx.x) >= items) return;
    const TileMemory<P> memory;
    WeightStream<P> weights(run.layout, run.packed, chunks_of_step(run, step), false, memory.slots);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        Tile<P, kDim> tile(run, memory, run.first_policy + item / tiles, item % tiles);
        run_open_step(tile, weights, run, open, item, step);
        if (step < layers) continue;
        if (run.p.pool) {
            tile.sum_rows();
            __syncthreads();
            const Piece start = run.tiles.pieces[item % tiles * kTileWarps];
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

int64_t packed_words(const SegmentEncoder& p) { return PackedWeights(p).before_backward(); }

template <class P, int kDim>
struct Encoder {
    const SegmentEncoder& p;
    cudaStream_t stream;
    TileWorkspace memory{p, packed_words(p), TileMemory<P>::kImage, kMaxOpenTiles};

    void run() const {
        const int64_t floats = p.policies * p.subsets * (p.pool ? p.clusters : p.subset_size) * kWidth;
        clear(p.out, floats, stream);
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

}  // namespace

template <class P, int kDim>
int64_t forward_workspace(const SegmentEncoder& p) {
    SegmentEncoder sized = p;
    sized.workspace = nullptr;
    return Encoder<P, kDim>{sized, nullptr}.memory.size;
}

template <class P, int kDim>
void run_forward(const SegmentEncoder& p, cudaStream_t stream) {
    Encoder<P, kDim>{p, stream}.run();
}

#define INSTANTIATE(P, kDim)                                            \
    template int64_t forward_workspace<P, kDim>(const SegmentEncoder&); \
    template void run_forward<P, kDim>(const SegmentEncoder&, cudaStream_t);
FOR_EACH_KIND(INSTANTIATE)

}  // namespace sopr::cuda
