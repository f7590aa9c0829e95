#include "cuda/segment_encoder_plan.h"

namespace sopr::cuda {
namespace {

constexpr int kThreads = 256;

// Cut the segments of a subset into pieces, one thread: segments go to the current closed tile while they fit.
__device__ void cut(const int32_t* offsets, int64_t clusters, int32_t first_segment, Piece* closed, Piece* open,
                    int32_t* counts) {
    int32_t used = 0, open_pieces = 0;  // pieces, those left free in earlier tiles included
    for (int32_t k = 0; k < clusters; ++k) {
        const int32_t length = offsets[k + 1] - offsets[k];
        const int32_t pieces = (length + kTileRows - 1) / kTileRows;
        const bool fits = pieces <= kTileWarps;
        int32_t& next = fits ? used : open_pieces;
        if (next % kTileWarps + pieces > kTileWarps) next += (kTileWarps - next % kTileWarps) % kTileWarps;
        Piece* to = fits ? closed : open;
        for (int32_t i = 0; i < pieces; ++i) to[next++] = {first_segment + k, i * kTileRows};
        if (!fits) next += (kTileWarps - next % kTileWarps) % kTileWarps;
    }
    counts[0] = (used + kTileWarps - 1) / kTileWarps;
    counts[1] = open_pieces / kTileWarps;
}

// A block per subset.
__global__ void __launch_bounds__(kThreads) cut_kernel(SegmentEncoder p, int64_t first_subset, Plan plan) {
    const int64_t subset = blockIdx.x, tiles = plan.closed_per_subset + plan.open_per_subset;
    Piece* pieces = plan.by_subset + subset * tiles * kTileWarps;
    for (int64_t i = threadIdx.x; i < tiles * kTileWarps; i += kThreads) pieces[i] = {-1, 0};
    __syncthreads();
    if (threadIdx.x == 0)
        cut(p.offsets + (first_subset + subset) * (p.clusters + 1), p.clusters,
            int32_t((first_subset + subset) * p.clusters), pieces, pieces + plan.closed_per_subset * kTileWarps,
            plan.counts + 2 * subset);
}

// Move the tiles of all subsets together: block (subset, 0 for closed or 1 for open).
__global__ void __launch_bounds__(kThreads) gather_tiles_kernel(Plan plan) {
    const int64_t subset = blockIdx.x, kind = blockIdx.y;
    const Tiles& to = kind ? plan.open : plan.closed;
    int64_t before = 0;
    for (int64_t s = 0; s < subset; ++s) before += plan.counts[2 * s + kind];
    const int64_t number = plan.counts[2 * subset + kind];
    const Piece* from = plan.by_subset + subset * (plan.closed_per_subset + plan.open_per_subset) * kTileWarps +
                        (kind ? plan.closed_per_subset * kTileWarps : 0);
    for (int64_t i = threadIdx.x; i < number * kTileWarps; i += kThreads) to.pieces[before * kTileWarps + i] = from[i];
    if (subset == gridDim.x - 1 && threadIdx.x == 0) *to.count = int32_t(before + number);
}

// Weight (n, k) of a layer's chunk; `p` points to the layer's tensors.
__device__ float weight_of_chunk(const float* p, int64_t feedforward, int64_t chunk, int n, int k) {
    const float* out = p + 3 * kWidth * kWidth + 3 * kWidth;
    const float* up = out + kWidth * kWidth + 3 * kWidth;
    const float* down = up + feedforward * kWidth + feedforward;
    if (chunk < 2) return p[(kWidth + chunk * 32 + n) * kWidth + k];
    if (chunk < 4) return p[(2 * kWidth + (chunk - 2) * 32 + n) * kWidth + k];
    if (chunk < 8) {
        const int64_t half = (chunk - 4) / 2 * 32;
        return chunk % 2 == 0 ? p[(half + n) * kWidth + k] : out[n * kWidth + half + k];
    }
    const int64_t part = (chunk - 8) / 2 * 32;
    return chunk % 2 == 0 ? up[(part + n) * kWidth + k] : down[n * feedforward + part + k];
}

// The same for a chunk of the backward pass.
__device__ float weight_of_backward_chunk(const float* p, int64_t feedforward, int64_t chunk, int n, int k) {
    const float* out = p + 3 * kWidth * kWidth + 3 * kWidth;
    const float* up = out + kWidth * kWidth + 3 * kWidth;
    const float* down = up + feedforward * kWidth + feedforward;
    const int64_t attention = chunk - 3 * (feedforward / 32);
    if (attention < 0) {
        const int64_t part = chunk / 3 * 32, kind = chunk % 3;
        return kind == 0   ? up[(part + n) * kWidth + k]
               : kind == 1 ? down[k * feedforward + part + n]
                           : up[(part + k) * kWidth + n];
    }
    const int64_t column = attention / 7 * 32, kind = attention % 7;
    if (kind < 3) return p[(kind * kWidth + column + n) * kWidth + k];
    if (kind == 3) return out[k * kWidth + column + n];
    return p[((kind - 4) * kWidth + column + k) * kWidth + n];
}

// Entry i of a layer's vectors.
__device__ float vector_entry(const float* p, int64_t feedforward, int64_t i) {
    constexpr int64_t kSquare = kWidth * kWidth;
    const int64_t ends[] = {3 * kWidth, 6 * kWidth, 6 * kWidth + feedforward};
    if (i < ends[0]) return p[3 * kSquare + i];
    p += 4 * kSquare;  // out_proj.bias and norm1 follow out_proj.weight, as in_proj_bias precedes it
    if (i < ends[1]) return p[i];
    p += feedforward * kWidth;
    if (i < ends[2]) return p[i];
    return p[feedforward * kWidth + i];
}

struct Place {
    int n, k;
};

// What word `word` of a unit holds in lane `lane`: its column and the first of its k. See segment_encoder_products.h.
__device__ Place place_in_unit(int words, int lane, int word) {
    const int pair = words == Tf32::kUnitWords ? word / 2 : word, odd = words == Tf32::kUnitWords ? word % 2 : 0;
    return {lane / 4, pair * 8 + lane % 4 * 2 + odd};
}

__global__ void __launch_bounds__(kThreads) pack_kernel(SegmentEncoder p, PackedWeights layout, uint32_t* packed) {
    const int64_t total = layout.before_backward();
    const int64_t inputs = p.state_width + p.column_width, F = p.feedforward;
    const int64_t floats_before = p.project ? kWidth * inputs + kWidth : 0;
    const int64_t floats_per_layer = 4 * kWidth * kWidth + 2 * F * kWidth + 9 * kWidth + F;
    const int words = p.bf16 ? Bf16::kUnitWords : Tf32::kUnitWords;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < total; i += int64_t(gridDim.x) * kThreads) {
        if (i < layout.projection_words()) {
            const int64_t unit = i / (kWarpSize * Tf32::kUnitWords);
            const Place at =
                place_in_unit(Tf32::kUnitWords, int(i / Tf32::kUnitWords % kWarpSize), int(i % Tf32::kUnitWords));
            const int64_t n = unit % 8 * kTileColumns + at.n, k = unit / 8 * kUnitDepth + at.k;
            packed[i] = __float_as_uint(k < inputs ? p.parameters[n * inputs + k] : 0.0f);
            continue;
        }
        if (i < layout.before_layers()) {
            packed[i] = __float_as_uint(p.parameters[kWidth * inputs + i - layout.projection_words()]);
            continue;
        }
        const float* const tensors = p.parameters + floats_before;
        if (i < layout.before_chunks()) {
            const int64_t entry = i - layout.before_layers(), layer = entry / layout.vectors();
            packed[i] = __float_as_uint(vector_entry(tensors + layer * floats_per_layer, F, entry % layout.vectors()));
            continue;
        }
        const int64_t word = i - layout.before_chunks(), number = word / layout.words_per_chunk;
        const int64_t layer = number / layout.chunks(), chunk = number % layout.chunks();
        const int in_chunk = int(word % layout.words_per_chunk), unit = in_chunk / (kWarpSize * words);
        const float* const of_layer = tensors + layer * floats_per_layer;
        const int tiles = chunk < 4 || chunk % 2 == 0 ? 4 : 8;  // of outputs
        const Place at = place_in_unit(words, in_chunk / words % kWarpSize, in_chunk % words);
        const int n = unit % tiles * kTileColumns + at.n, k = unit / tiles * kUnitDepth + at.k;
        const float weight = weight_of_chunk(of_layer, F, chunk, n, k);
        packed[i] = p.bf16 ? to_bf16(weight, weight_of_chunk(of_layer, F, chunk, n, k + 1)) : __float_as_uint(weight);
    }
}

__global__ void __launch_bounds__(kThreads)
    pack_backward_kernel(SegmentEncoder p, PackedWeights layout, uint32_t* packed, int64_t total) {
    const int64_t inputs = p.state_width + p.column_width, F = p.feedforward;
    const int64_t floats_before = p.project ? kWidth * inputs + kWidth : 0;
    const int64_t floats_per_layer = 4 * kWidth * kWidth + 2 * F * kWidth + 9 * kWidth + F;
    for (int64_t i = layout.before_backward() + int64_t(blockIdx.x) * kThreads + threadIdx.x; i < total;
         i += int64_t(gridDim.x) * kThreads) {
        if (i >= layout.before_columns()) {
            const int64_t word = i - layout.before_columns(), column = word / kWordsOfColumns * 32;
            const int in_chunk = int(word % kWordsOfColumns), unit = in_chunk / (kWarpSize * Tf32::kUnitWords);
            const Place at =
                place_in_unit(Tf32::kUnitWords, in_chunk / Tf32::kUnitWords % kWarpSize, in_chunk % Tf32::kUnitWords);
            const int64_t n = column + unit % 4 * kTileColumns + at.n, k = unit / 4 * kUnitDepth + at.k;
            packed[i] = __float_as_uint(n < p.column_width ? p.parameters[k * inputs + p.state_width + n] : 0.0f);
            continue;
        }
        const int words = p.bf16 ? Bf16::kUnitWords : Tf32::kUnitWords;
        const int64_t number = (i - layout.before_backward()) / layout.words_per_chunk;
        const int64_t layer = p.layers - 1 - number / layout.backward_chunks();
        const int64_t chunk = number % layout.backward_chunks(), attention = chunk - 3 * (F / 32);
        const float* tensors = p.parameters + floats_before + layer * floats_per_layer;
        const int in_chunk = int((i - layout.before_backward()) % layout.words_per_chunk);
        const int unit = in_chunk / (kWarpSize * words);
        const int tiles = (attention < 0 ? chunk % 3 < 2 : attention % 7 < 4) ? 4 : 8;  // of outputs
        const Place at = place_in_unit(words, in_chunk / words % kWarpSize, in_chunk % words);
        const int n = unit % tiles * kTileColumns + at.n, k = unit / tiles * kUnitDepth + at.k;
        const float weight = weight_of_backward_chunk(tensors, F, chunk, n, k);
        packed[i] =
            p.bf16 ? to_bf16(weight, weight_of_backward_chunk(tensors, F, chunk, n, k + 1)) : __float_as_uint(weight);
    }
}

}  // namespace

void make_plan(const SegmentEncoder& p, int64_t first_subset, int64_t subsets, const Plan& plan, cudaStream_t stream) {
    launch("segment_encoder plan", cut_kernel, subsets, 1, kThreads, stream, p, first_subset, plan);
    launch("segment_encoder plan", gather_tiles_kernel, subsets, 2, kThreads, stream, plan);
}

void pack_weights(const SegmentEncoder& p, uint32_t* packed, cudaStream_t stream) {
    const PackedWeights layout(p);
    const int64_t words = layout.before_backward();
    launch("segment_encoder weights", pack_kernel, (words + kThreads - 1) / kThreads, 1, kThreads, stream, p, layout,
           packed);
}

int64_t packed_backward_words(const SegmentEncoder& p) {
    const int64_t chunks_of_columns = p.project ? (p.column_width + 31) / 32 : 0;
    return PackedWeights(p).before_columns() + chunks_of_columns * kWordsOfColumns;
}

void pack_backward_weights(const SegmentEncoder& p, uint32_t* packed, cudaStream_t stream) {
    pack_weights(p, packed, stream);
    const PackedWeights layout(p);
    const int64_t total = packed_backward_words(p), words = total - layout.before_backward();
    launch("segment_encoder weights", pack_backward_kernel, (words + kThreads - 1) / kThreads, 1, kThreads, stream, p,
           layout, packed, total);
}

}  // namespace sopr::cuda
