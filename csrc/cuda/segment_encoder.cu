// Transformer encoder, one kernel per step, for as many cells of the (policy, subset) grid at a time as fit the
// workspace. Computes in fp32; reads weights in place. If shapes fit, the kernels of segment_encoder_tiles.cu run
// instead.
#include "cuda/kernels_cuda.h"
#include "cuda/launch.h"
#include "cuda/segment_encoder_linear.h"
#include "cuda/segment_encoder_tiles.h"
#include "cuda/segments.h"
#include "cuda/warp.h"

#ifndef SOPR_MAX_TOKENS  // tests set fewer
#define SOPR_MAX_TOKENS (1 << 16)
#endif

namespace sopr::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
constexpr int64_t kMaxTokens = SOPR_MAX_TOKENS;

int64_t inputs_of(const SegmentEncoder& p) { return p.state_width + p.column_width; }

int64_t cells_per_pass(const SegmentEncoder& p) {
    const int64_t cells = p.policies * p.subsets;
    const int64_t size = p.subset_size > p.clusters ? p.subset_size : p.clusters;
    const int64_t limit = size < 1 ? cells : size < kMaxTokens ? kMaxTokens / size : 1;
    return limit < cells ? limit : cells;
}

// The activations of T tokens.
struct Activations {
    float *x, *branch, *attended;  // (T, E)
    float* wide;                   // tokens (T, ds + dc); queries, keys and values (3, T, E); or hidden values (T, F)
    float* statistics;             // (T, H, 2)
    int32_t* order;                // (C K), of the segments
    int64_t size = 0;

    explicit Activations(const SegmentEncoder& p) : base(p.workspace) {
        const int64_t tokens = cells_per_pass(p) * p.subset_size;
        int64_t widest = 3 * p.width > p.feedforward ? 3 * p.width : p.feedforward;
        if (inputs_of(p) > widest) widest = inputs_of(p);
        x = take(tokens * p.width);
        branch = take(tokens * p.width);
        attended = take(tokens * p.width);
        wide = take(tokens * widest);
        statistics = take(tokens * p.heads * 2);
        order = reinterpret_cast<int32_t*>(take(cells_per_pass(p) * p.clusters));
    }

  private:
    float* base;
    float* take(int64_t floats) {
        size += floats;
        return base ? base + size - floats : nullptr;
    }
};

int64_t blocks_of(int64_t rows) { return (rows + kWarps - 1) / kWarps; }

// The row of this thread's warp.
__device__ int64_t warp_row() { return int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarpSize; }

// to = tokens (rows, ds + dc); zeros after the last segment, where p.rows is arbitrary.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(int64_t rows, SegmentEncoder p, Segments segments, float* to) {
    const int64_t token = warp_row();
    if (token >= rows) return;
    const int64_t cell = segments.first + token / p.subset_size, width = p.state_width + p.column_width;
    const bool used = segments.owns(token);
    const int64_t row = used ? p.rows[cell % p.subsets * p.subset_size + token % p.subset_size] : 0;
    const float* state = p.states + row * p.state_width;
    const float* columns = p.columns + (cell / p.subsets * p.states_count + row) * p.column_width;
    for (int64_t c = threadIdx.x % kWarpSize; c < width; c += kWarpSize)
        to[token * width + c] = !used ? 0.0f : c < p.state_width ? state[c] : columns[c - p.state_width];
}

// x = norm(x + branch); overwrites branch.
__global__ void __launch_bounds__(kThreads)
    add_norm_kernel(int64_t rows, int64_t width, const float* weight, const float* bias, float* branch, float* x) {
    const int64_t row = warp_row();
    if (row >= rows) return;
    x += row * width;
    branch += row * width;
    const int lane = threadIdx.x % kWarpSize;
    const float weight_of_column = 1.0f / float(width);
    float sum = 0, squares = 0;
    for (int64_t e = lane; e < width; e += kWarpSize) {
        branch[e] += x[e];
        sum += branch[e];
    }
    const float mean = warp_sum(sum) * weight_of_column;
    for (int64_t e = lane; e < width; e += kWarpSize) {
        const float off = branch[e] - mean;
        squares = fmaf(off, off, squares);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) * weight_of_column + 1e-5f);
    for (int64_t e = lane; e < width; e += kWarpSize) x[e] = (branch[e] - mean) * scale * weight[e] + bias[e];
}

// to = rows of segments; zeros after the last segment of a cell.
__global__ void __launch_bounds__(kThreads)
    copy_kernel(int64_t rows, Segments segments, int64_t width, const float* x, float* to) {
    const int64_t row = warp_row();
    if (row >= rows) return;
    const bool used = segments.owns(row);
    for (int64_t e = threadIdx.x % kWarpSize; e < width; e += kWarpSize)
        to[row * width + e] = used ? x[row * width + e] : 0;
}

// Encode cells segments.first : segments.first + cells.
void encode(const SegmentEncoder& p, const Segments& segments, int64_t cells, cudaStream_t stream) {
    const Activations a(p);
    const int64_t tokens = cells * p.subset_size, number = cells * p.clusters;
    const int64_t E = p.width, F = p.feedforward;
    ParameterReader parameters{p.parameters};

    const auto apply = [&](const float* in, int64_t inputs, int64_t outputs, float* out, bool relu = false,
                           int64_t matrices = 1) {
        const float* weight = parameters.next(outputs * inputs);
        linear({in, weight, parameters.next(outputs), out, tokens, inputs, outputs, outputs / matrices, relu}, stream);
    };
    const auto dropout = [&](int64_t layer, Site site) {
        Dropout d = p.dropout;
        d.layer = uint32_t(layer);
        d.site = site;
        d.segment_base += segments.first * p.clusters;
        return d;
    };
    const auto drop = [&](float* x, int64_t width, int64_t layer, Site site) {
        if (p.dropout.rng && dropout_threshold(p.dropout.probability))
            segment_dropout({x, nullptr, x, number, width, dropout(layer, site)}, segments, stream);
    };
    const auto by_rows = [&](auto kernel, auto... arguments) {
        if (tokens) launch("segment_encoder", kernel, blocks_of(tokens), 1, kThreads, stream, tokens, arguments...);
    };
    const auto add_norm = [&] {
        const float* weight = parameters.next(E);
        by_rows(add_norm_kernel, E, weight, parameters.next(E), a.branch, a.x);
    };

    if (p.layers && number) order_segments(segments, number, a.order, stream);
    by_rows(gather_kernel, p, segments, p.project ? a.wide : a.x);
    if (p.project) apply(a.wide, inputs_of(p), E, a.x, true);
    for (int64_t layer = 0; layer < p.layers; ++layer) {
        apply(a.x, E, 3 * E, a.wide, false, 3);
        const float *q = a.wide, *k = q + tokens * E, *v = k + tokens * E;
        const float scale = 1.0f / sqrtf(float(E / p.heads));
        segment_attention({q, k, v, nullptr, a.attended, a.statistics, number, p.heads, E / p.heads, scale,
                           dropout(layer, kAttentionWeights), a.order},
                          segments, stream);
        apply(a.attended, E, E, a.branch);
        drop(a.branch, E, layer, kAfterAttention);
        add_norm();
        apply(a.x, E, F, a.wide, true);
        drop(a.wide, F, layer, kInsideFeedForward);
        apply(a.wide, F, E, a.branch);
        drop(a.branch, E, layer, kAfterFeedForward);
        add_norm();
    }
    if (p.pool)
        segment_mean({a.x, nullptr, p.out + segments.first * p.clusters * E, number, E}, segments, stream);
    else
        by_rows(copy_kernel, segments, E, static_cast<const float*>(a.x), p.out + segments.first * p.subset_size * E);
}

}  // namespace

bool segment_encoder_uses_tensor_cores(const SegmentEncoder& p) { return tiles_fit(p); }

bool segment_encoder_backward_uses_tensor_cores(const SegmentEncoder& p) { return tiles_fit_backward(p); }

int64_t segment_encoder_backward_workspace(const SegmentEncoder& p, bool columns_grad) {
    return segment_encoder_tiles_backward_workspace(p, columns_grad);
}

void segment_encoder_backward(const SegmentEncoderBackward& b, cudaStream_t stream) {
    segment_encoder_tiles_backward(b, stream);
}

int64_t segment_encoder_workspace(const SegmentEncoder& p) {
    return tiles_fit(p) ? segment_encoder_tiles_workspace(p) : Activations(p).size;
}

void segment_encoder(const SegmentEncoder& p, cudaStream_t stream) {
    if (tiles_fit(p)) return segment_encoder_tiles(p, stream);
    const int64_t cells = p.policies * p.subsets, pass = cells_per_pass(p);
    for (int64_t first = 0; first < cells; first += pass)
        encode(p, {p.offsets, p.clusters, p.subsets, p.subset_size, first}, cells - first < pass ? cells - first : pass,
               stream);
}

}  // namespace sopr::cuda
