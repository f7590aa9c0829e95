// Backward pass of the encoder on tensor cores. It recomputes the forward pass of a tile and keeps on a tape what the
// way back needs; a block of closed tiles reuses one tape for all its tiles. Open tiles take a kernel per layer forward
// and two backward, since their rows attend to those of other blocks.
//
// Every block adds up gradients of the parameters of its tiles, which are always the same; then one kernel adds up the
// blocks in order. So results repeat bit for bit on GPUs that run equally many blocks.
#include "cuda/segment_encoder_kinds.h"
#include "cuda/segment_encoder_open.h"

#ifndef SOPR_MAX_OPEN_TILES_BACKWARD  // tests set fewer
#define SOPR_MAX_OPEN_TILES_BACKWARD 1024
#endif

namespace sopr::cuda {
namespace {

constexpr int64_t kMaxOpenTiles = SOPR_MAX_OPEN_TILES_BACKWARD;  // that the workspace has room for
constexpr int kThreads = 256;

// Arrays of open tiles next to those of the forward pass, by policy and tile.
struct OpenBackward {
    OpenMemory forward;
    float* tapes;
    unsigned char* operands;  // BackwardMemory::kOperands of columns 0 to 32, then those of 32 to 64
};

template <class P, int kDim>
__global__ void __launch_bounds__(kTileThreads) closed_backward_kernel(BackwardRun run, float* tapes) {
    const EncoderRun& forward = run.forward;
    const int64_t tiles = *forward.tiles.count, items = tiles * forward.policies, layers = forward.p.layers;
    if (int64_t(blockIdx.x) >= items) return;
    const TileMemory<P> memory;
    const PackedWeights& layout = forward.layout;
    WeightStream<P> weights(layout, forward.packed, {0, layers * (layout.chunks() + layout.backward_chunks())}, false,
                            BackwardMemory<P>().slots());
    const Tape tape(tapes + blockIdx.x * Tape::floats(layers, forward.p.heads), forward.p.heads);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        BackwardTile<P, kDim> tile(run, memory, forward.first_policy + item / tiles, item % tiles, tape);
        tile.read_input();
        for (int64_t layer = 0; layer < layers; ++layer) {
            tile.make_keys_and_values(layer, weights);
            tile.attend_to_tile(layer, weights);
            tile.Tile<P, kDim, Tape>::feed_forward(layer, weights);
        }
        for (int64_t layer = layers - 1; layer >= 0; --layer) {
            tile.blocks(layer, weights);
            tile.store_input(layer);
            for (int column = 0; column < kWidth; column += 32) {
                tile.make_operands(layer, column, weights);
                tile.attention_of_tile(layer, column);
                tile.in_projection(layer, column, weights);
            }
        }
        tile.projection();
    }
    weights.finish();
}

// Forward, with a tape: see run_open_step.
template <class P, int kDim>
__global__ void __launch_bounds__(kTileThreads) open_tape_kernel(BackwardRun run, OpenBackward open, int64_t step) {
    const EncoderRun& forward = run.forward;
    const int64_t tiles = *forward.tiles.count, items = tiles * forward.policies, heads = forward.p.heads;
    if (int64_t(blockIdx.x) >= items) return;
    const TileMemory<P> memory;
    WeightStream<P> weights(forward.layout, forward.packed, chunks_of_step(forward, step), false, memory.slots);
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const Tape tape(open.tapes + item * Tape::floats(forward.p.layers, heads), heads);
        Tile<P, kDim, Tape> tile(forward, memory, forward.first_policy + item / tiles, item % tiles, tape);
        run_open_step(tile, weights, forward, open.forward, item, step);
    }
    weights.finish();
}

// Backward through a layer as far as its attention, whose operands go to memory.
template <class P, int kDim>
__global__ void __launch_bounds__(kTileThreads) open_block_kernel(BackwardRun run, OpenBackward open, int64_t layer) {
    using Memory = BackwardMemory<P>;
    const EncoderRun& forward = run.forward;
    const int64_t tiles = *forward.tiles.count, items = tiles * forward.policies, heads = forward.p.heads;
    if (int64_t(blockIdx.x) >= items) return;
    const TileMemory<P> memory;
    const int64_t first = forward.layout.first_backward_chunk(layer), parts = 3 * (forward.p.feedforward / 32);
    WeightStream<P> weights(forward.layout, forward.packed, {first, parts + 4, first + parts + 7, 4}, false,
                            Memory().slots());
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const Tape tape(open.tapes + item * Tape::floats(forward.p.layers, heads), heads);
        BackwardTile<P, kDim> tile(run, memory, forward.first_policy + item / tiles, item % tiles, tape);
        tile.blocks(layer, weights);
        tile.store_input(layer);
        for (int column = 0; column < kWidth; column += 32) {
            tile.make_operands(layer, column, weights);
            unsigned char* image = open.operands + (2 * item + column / 32) * Memory::kOperands;
            copy_image(Memory::kOperands, [&](int i) {
                *reinterpret_cast<uint4*>(image + i) = *reinterpret_cast<const uint4*>(dynamic_shared() + i);
            });
        }
    }
    weights.finish();
}

// Backward through the attention of a layer.
template <class P, int kDim>
__global__ void __launch_bounds__(kTileThreads)
    open_attention_kernel(BackwardRun run, OpenBackward open, int64_t layer) {
    using Memory = BackwardMemory<P>;
    const EncoderRun& forward = run.forward;
    const int64_t tiles = *forward.tiles.count, items = tiles * forward.policies, heads = forward.p.heads;
    if (int64_t(blockIdx.x) >= items) return;
    const TileMemory<P> tile_memory;
    const Memory memory{};
    const int64_t first = forward.layout.first_backward_chunk(layer) + 3 * (forward.p.feedforward / 32);
    WeightStream<P> weights(forward.layout, forward.packed, {first + 4, 3, first + 11, 3}, false, memory.slots());
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const Tape tape(open.tapes + item * Tape::floats(forward.p.layers, heads), heads);
        BackwardTile<P, kDim> tile(run, tile_memory, forward.first_policy + item / tiles, item % tiles, tape);
        const Piece start = forward.tiles.pieces[item % tiles * kTileWarps];
        const int length = length_of(forward, start);
        for (int column = 0; column < kWidth; column += 32) {
            const unsigned char* own = open.operands + (2 * item + column / 32) * Memory::kOperands;
            const unsigned char* images = own - start.row / kTileTokens * 2 * int64_t(Memory::kOperands);
            __syncthreads();
            stage(dynamic_shared(), own, Memory::kOperands);
            tile.clear_gradients();
            // Keys and values of all tiles of the segment, then their queries and gradients.
            for (int kind = 0; kind < 2; ++kind)
                for (int row = 0; row < length; row += kTileTokens) {
                    const unsigned char* image = images + row / kTileTokens * 2 * int64_t(Memory::kOperands);
                    const int arrays[2] = {kind ? Memory::kQueries : Memory::kKeys,
                                           kind ? Memory::kGradients : Memory::kValues};
                    __syncthreads();
                    for (int i = 0; i < 2; ++i)
                        stage(memory.array(Memory::kFirst + i), image + arrays[i] * Memory::kArray, Memory::kArray);
                    if (kind) stage(memory.other_statistics(), image + 4 * Memory::kArray, Memory::kStatistics);
                    wait_for_stage();
                    if (!tile.active()) continue;
                    const int count = length - row < kTileTokens ? length - row : kTileTokens;
                    const auto *a = memory.array(Memory::kFirst), *b = memory.array(Memory::kSecond);
                    if (kind)
                        tile.add_grad_of_keys(layer, column, a, b, memory.other_statistics(), count, row);
                    else
                        tile.add_grad_of_queries(layer, column, a, b, count, row);
                }
            __syncthreads();
            tile.store_input(layer);
            tile.in_projection(layer, column, weights);
        }
        if (layer == 0) tile.projection();
    }
    weights.finish();
}

// Sums over blocks (or warps, `vectors`) of gradients of the parameters.
__global__ void __launch_bounds__(kThreads)
    sum_blocks_kernel(BackwardRun run, PackedWeights layout, int64_t blocks, float* grad_parameters) {
    const SegmentEncoder& p = run.forward.p;
    const int64_t F = p.feedforward, before = p.project ? kWidth * (p.state_width + p.column_width) + kWidth : 0;
    const int64_t per_layer = 4 * kWidth * kWidth + 2 * F * kWidth + layout.vectors();
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < run.parameters;
         i += int64_t(gridDim.x) * kThreads) {
        int64_t vector = -1;  // entry, if this is no matrix
        if (i < before) {
            if (i >= before - kWidth) vector = i - (before - kWidth);
        } else {
            const int64_t layer = (i - before) / per_layer, in_layer = (i - before) % per_layer;
            const int64_t in = in_layer - 3 * kWidth * kWidth;  // places after each of the four matrices
            const int64_t out = in - 3 * kWidth - kWidth * kWidth, up = out - 3 * kWidth - F * kWidth;
            const int64_t down = up - F - F * kWidth;
            const int64_t entry = in >= 0 && in < 3 * kWidth     ? in
                                  : out >= 0 && out < 3 * kWidth ? 3 * kWidth + out
                                  : up >= 0 && up < F            ? 6 * kWidth + up
                                  : down >= 0                    ? 6 * kWidth + F + down
                                                                 : -1;
            if (entry >= 0) vector = kWidth + layer * layout.vectors() + entry;
        }
        const bool is_vector = vector >= 0;
        const float* from = is_vector ? run.vectors + vector : run.matrices + i;
        const int64_t number = is_vector ? blocks * kTileWarps : blocks;
        const int64_t stride = is_vector ? run.vector_entries : run.parameters;
        float sum = 0;
        for (int64_t b = 0; b < number; ++b) sum += from[b * stride];
        grad_parameters[i] = sum;
    }
}

int64_t parameters_of(const SegmentEncoder& p) {
    const int64_t E = kWidth, F = p.feedforward;
    return (p.project ? E * (p.state_width + p.column_width + 1) : 0) + p.layers * (4 * E * E + 2 * F * E + 9 * E + F);
}

struct BackwardWorkspace : TileWorkspace {
    int64_t blocks;          // at most
    int64_t floats_of_sums;  // matrices and vectors
    float *tapes, *matrices, *vectors, *grad_tokens = nullptr;
    int32_t* by_state = nullptr;
    OpenBackward open_backward;

    // `operand_bytes` is BackwardMemory::kOperands.
    BackwardWorkspace(const SegmentEncoder& p, int64_t image_bytes, int64_t operand_bytes, int64_t most_blocks,
                      bool columns_grad)
        : TileWorkspace(p, packed_backward_words(p), image_bytes, kMaxOpenTiles) {
        const int64_t closed = subsets * plan.closed_per_subset * p.policies;
        const int64_t items = closed > open_tiles ? closed : open_tiles;
        blocks = items < most_blocks ? items : most_blocks;
        const int64_t tape = Tape::floats(p.layers, p.heads);
        tapes = take<float>(blocks * tape);
        const int64_t in_matrices = blocks * parameters_of(p);
        floats_of_sums = in_matrices + blocks * kTileWarps * (kWidth + p.layers * PackedWeights(p).vectors());
        matrices = take<float>(floats_of_sums);
        vectors = matrices + in_matrices;
        open_backward.forward = open;
        open_backward.tapes = take<float>(open_tiles * tape);
        open_backward.operands = take<unsigned char>(open_tiles * 2 * operand_bytes / 4);
        if (!columns_grad) return;
        grad_tokens = take<float>(p.policies * p.subsets * p.subset_size * p.column_width);
        by_state = take<int32_t>(2 * p.states_count);
    }
};

template <class P, int kDim>
struct Backward {
    const SegmentEncoderBackward& b;
    cudaStream_t stream;
    const SegmentEncoder& p = b.forward;
    const int bytes = shared_bytes<P>(p);
    const int64_t most_blocks = blocks_at_once(closed_backward_kernel<P, kDim>, kTileThreads, bytes);
    BackwardWorkspace memory{p, TileMemory<P>::kImage, BackwardMemory<P>::kOperands, most_blocks,
                             b.grad_columns != nullptr};

    void run() const {
        pack_backward_weights(p, memory.packed, stream);
        clear(memory.matrices, memory.floats_of_sums, stream);
        for (int64_t first = 0; first < p.subsets; first += memory.subsets) {
            const int64_t subsets = p.subsets - first < memory.subsets ? p.subsets - first : memory.subsets;
            make_plan(p, first, subsets, memory.plan, stream);
            if (memory.plan.open_per_subset)
                for (int64_t policy = 0; policy < p.policies; policy += memory.policies)
                    run_open(policy, subsets * memory.plan.open_per_subset);
            start("segment_encoder_backward closed", closed_backward_kernel<P, kDim>,
                  subsets * memory.plan.closed_per_subset * p.policies, run_of(memory.plan.closed, 0, p.policies),
                  memory.tapes);
        }
        const BackwardRun all = run_of({}, 0, 0);
        launch("segment_encoder_backward sums", sum_blocks_kernel, (all.parameters + kThreads - 1) / kThreads, 1,
               kThreads, stream, all, all.forward.layout, memory.blocks, b.grad_parameters);
        if (b.grad_columns) sum_tokens(p, memory.grad_tokens, memory.by_state, b.grad_columns, stream);
    }

  private:
    BackwardRun run_of(const Tiles& tiles, int64_t first_policy, int64_t policies) const {
        const PackedWeights layout(p);
        return {{p, layout, memory.packed, tiles, first_policy, policies},
                b.grad_out,
                memory.grad_tokens,
                memory.matrices,
                memory.vectors,
                parameters_of(p),
                kWidth + p.layers * layout.vectors()};
    }

    template <class... Parameters>
    void start(const char* name, void (*kernel)(Parameters...), int64_t items, Parameters... arguments) const {
        if (items == 0) return;
        launch_with_memory(name, kernel, items < memory.blocks ? items : memory.blocks, 1, kTileThreads, bytes, stream,
                           arguments...);
    }

    void run_open(int64_t first_policy, int64_t tiles) const {
        const int64_t left = p.policies - first_policy, policies = left < memory.policies ? left : memory.policies;
        const BackwardRun run = run_of(memory.plan.open, first_policy, policies);
        const int64_t items = tiles * policies;
        for (int64_t step = 0; step <= p.layers; ++step)
            start("segment_encoder_backward tape", open_tape_kernel<P, kDim>, items, run, memory.open_backward, step);
        for (int64_t layer = p.layers - 1; layer >= 0; --layer) {
            start("segment_encoder_backward block", open_block_kernel<P, kDim>, items, run, memory.open_backward,
                  layer);
            start("segment_encoder_backward attention", open_attention_kernel<P, kDim>, items, run,
                  memory.open_backward, layer);
        }
    }
};

}  // namespace

template <class P, int kDim>
int64_t backward_workspace(const SegmentEncoder& p, bool columns_grad) {
    SegmentEncoder sized = p;
    sized.workspace = nullptr;
    const int64_t blocks = blocks_at_once(closed_backward_kernel<P, kDim>, kTileThreads, shared_bytes<P>(p));
    return BackwardWorkspace(sized, TileMemory<P>::kImage, BackwardMemory<P>::kOperands, blocks, columns_grad).size;
}

template <class P, int kDim>
void run_backward(const SegmentEncoderBackward& b, cudaStream_t stream) {
    Backward<P, kDim>{b, stream}.run();
}

#define INSTANTIATE(P, kDim)                                                   \
    template int64_t backward_workspace<P, kDim>(const SegmentEncoder&, bool); \
    template void run_backward<P, kDim>(const SegmentEncoderBackward&, cudaStream_t);
FOR_EACH_KIND(INSTANTIATE)

}  // namespace sopr::cuda
