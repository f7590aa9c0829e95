#include "cpu/segment_encoder.h"

#include "cpu/kernel_table.h"
#include "cpu/pool.h"

namespace sopr::SOPR_LEVEL {
namespace {

// Heads must consist of whole pairs.
bool uses_bf16(const SegmentEncoder& p) { return kBf16 && p.bf16 && p.width / p.heads % 2 == 0; }

// Floats of the activations that segment `index` of a policy keeps.
int64_t kept_size(const SegmentEncoder& p, const Shape& s, int64_t index) {
    const int32_t* offsets = p.offsets + index / p.clusters * (p.clusters + 1) + index % p.clusters;
    Arena measure;
    Tape(measure, s, offsets[1] - offsets[0], true);
    return p.layers * measure.floats();
}

// Policies first : last.
struct Block {
    int64_t first, last;
    Block(int64_t first, int64_t last) : first(first), last(last) {}
    Block(const SegmentEncoder& p, int64_t index)
        : first(p.blocks ? p.blocks[index] : 0), last(p.blocks ? p.blocks[index + 1] : p.policies) {}
    int64_t segments(const SegmentEncoder& p) const { return (last - first) * p.subsets * p.clusters; }
};

// The workspace: packed parameters, memory of each worker, partial gradients of parameters, gradients of tokens.
struct Memory {
    Shape shape;
    bool backward, bf16;
    Arena arena;
    PackedWeights weights;
    int64_t tape_size, worker_size, partials = 0, gradient_size = 0;
    int64_t wave = 1;  // blocks whose partial gradients exist at a time
    int64_t* places;   // (S K + 1), where a policy's tape holds each segment
    float *workers, *gradients = nullptr, *tokens = nullptr;
    int64_t longest;

    Memory(const SegmentEncoder& p, bool backward, int threads)
        : shape(p),
          backward(backward),
          bf16(uses_bf16(p)),
          arena(p.workspace),
          weights(arena, p, backward, bf16),
          places(arena.take<int64_t>(p.subsets * p.clusters + 1)),
          longest(p.longest) {
        if (p.kept && places) {
            places[0] = 0;
            for (int64_t i = 0; i < p.subsets * p.clusters; ++i) places[i + 1] = places[i] + kept_size(p, shape, i);
        }
        Arena measure;
        Scratch(measure, shape, longest, backward, bf16);
        const int64_t scratch = measure.floats();
        Tape(measure, shape, longest, backward);
        tape_size = measure.floats() - scratch;
        worker_size = scratch + (backward ? p.layers : 1) * tape_size;
        const int64_t segments = p.policies * p.subsets * p.clusters;
        workers = arena.take(worker_size * (min(threads, segments)));
        if (!backward) return;
        Arena measure_gradient;
        gradient_size = Gradient(measure_gradient, p).size;
        int64_t most = 1;
        for (int64_t i = 0; i < p.block_count; ++i) most = max(most, Block(p, i).segments(p));
        partials = partials_of(most);
        wave = max(1, min(p.block_count, (int64_t(1) << 24) / (partials * gradient_size)));
        gradients = arena.take(wave * partials * gradient_size);
        tokens = arena.take(p.policies * p.subsets * p.subset_size * p.column_width);
    }

    // Partial gradients of a block: 8 to 32, about 32 MB, few enough for the cache, enough for many threads.
    // Independent of `threads`, so that results are too.
    int64_t partials_of(int64_t segments) const {
        return min(min(max((int64_t(1) << 23) / gradient_size, 8), 32), max(segments, 1));
    }
    Gradient gradient(const SegmentEncoder& p, int64_t block, int64_t partial) const {
        Arena partial_arena(gradients + (block * partials + partial) * gradient_size);
        return Gradient(partial_arena, p);
    }
};

// Segment order[item / P] of policy item % P of a block of P policies.
struct SegmentTask {
    int64_t policy, index, subset, number, begin, length, first_token;
    bool kept;
    const int32_t* rows;

    SegmentTask(const SegmentEncoder& p, const Block& block, int64_t item) {
        const int64_t policies = block.last - block.first;
        index = p.order[item / policies];
        const int64_t cluster = index % p.clusters;
        policy = block.first + item % policies;
        kept = policy < p.kept;
        subset = index / p.clusters;
        const int32_t* offsets = p.offsets + subset * (p.clusters + 1) + cluster;
        begin = offsets[0];
        length = offsets[1] - offsets[0];
        rows = p.rows + subset * p.subset_size + begin;
        number = (policy * p.subsets + subset) * p.clusters + cluster;
        first_token = (policy * p.subsets + subset) * p.subset_size + begin;
    }
    // Index of this segment's result in an array shaped like `out`.
    int64_t out_index(const SegmentEncoder& p) const { return (p.pool ? number : first_token) * p.width; }
};

struct Worker {
    const Memory& memory;
    Arena arena;
    Scratch scratch;

    Worker(const Memory& m, int worker)
        : memory(m),
          arena(m.workers + worker * m.worker_size),
          scratch(arena, m.shape, m.longest, m.backward, m.bf16) {}
    Tape tape(const SegmentEncoder& p, const SegmentTask& task, int64_t layer) const {
        const Memory& m = memory;
        if (!task.kept) {
            Arena tape_arena(reinterpret_cast<float*>(arena.next()) + layer * m.tape_size);
            return Tape(tape_arena, m.shape, m.longest, m.backward);
        }
        const int64_t size = (m.places[task.index + 1] - m.places[task.index]) / p.layers;
        Arena tape_arena(p.tape + task.policy * m.places[p.subsets * p.clusters] + m.places[task.index] + layer * size);
        return Tape(tape_arena, m.shape, task.length, true);
    }
};

Segment segment_of(const SegmentEncoder& p, const SegmentTask& task) {
    return {task.length, DropoutSite(p.dropout, task.number)};
}

// to (L, pitch) = tokens, padded with zeros. Prefetches, since rows lie anywhere in memory.
void gather(const SegmentEncoder& p, const SegmentTask& task, int64_t pitch, float* to) {
    constexpr int64_t kAhead = 8;
    const float* columns = p.columns + task.policy * p.states_count * p.column_width;
    for (int64_t t = 0; t < task.length; ++t, to += pitch) {
        if (t + kAhead < task.length) {
            __builtin_prefetch(p.states + task.rows[t + kAhead] * p.state_width);
            __builtin_prefetch(columns + task.rows[t + kAhead] * p.column_width);
        }
        const int64_t row = task.rows[t];
        if (p.state_width) std::memcpy(to, p.states + row * p.state_width, p.state_width * sizeof(float));
        if (p.column_width)
            std::memcpy(to + p.state_width, columns + row * p.column_width, p.column_width * sizeof(float));
        for (int64_t i = p.state_width + p.column_width; i < pitch; ++i) to[i] = 0.0f;
    }
}

// scratch.x = input of the first layer.
void load_tokens(const SegmentEncoder& p, const Worker& w, const SegmentTask& task) {
    const Shape& s = w.memory.shape;
    float* x = w.scratch.x;
    if (!p.project) return gather(p, task, s.pitch, x);
    gather(p, task, s.inputs_pitch, w.scratch.inputs);
    multiply({task.length,
              s.width,
              s.inputs,
              {w.scratch.inputs, s.inputs_pitch, 1},
              packed(w.memory.weights.project.weight, s.inputs),
              {w.memory.weights.project.bias},
              x,
              s.pitch,
              true});
    // An infinite input times the zero weights of the padding is NaN.
    for (int64_t t = 0; t < task.length; ++t)
        for (int64_t e = s.width; e < s.pitch; ++e) x[t * s.pitch + e] = 0.0f;
}

// scratch.x = output of the last layer. Without a backward pass, one tape serves all layers.
void run(const SegmentEncoder& p, const Worker& w, const SegmentTask& task, const Segment& segment) {
    const Memory& m = w.memory;
    load_tokens(p, w, task);
    for (int64_t i = 0; i < p.layers && !cancelled(); ++i)
        layer_forward(m.shape, segment, uint32_t(i), m.weights.layer(i),
                      w.tape(p, task, m.backward || task.kept ? i : 0), w.scratch);
}

int64_t parameter_count(const SegmentEncoder& p) {
    const int64_t e = p.width, f = p.feedforward;
    return p.project * e * (p.state_width + p.column_width + 1) +
           p.layers * (4 * e * (e + 1) + 4 * e + f * (e + 1) + e * (f + 1));
}

void zero(float* to, int64_t count) { std::memset(to, 0, count * sizeof(float)); }

// grad = gradient of the tokens that run() returned.
void gather_grad(const SegmentEncoder& p, const Shape& s, const SegmentTask& task, const float* grad_out, float* grad) {
    const float* from = grad_out + task.out_index(p);
    const float scale = p.pool ? 1.0f / float(task.length) : 1.0f;
    for (int64_t t = 0; t < task.length; ++t)
        for (int64_t e = 0; e < s.pitch; ++e)
            grad[t * s.pitch + e] = e < s.width ? from[(p.pool ? 0 : t * s.width) + e] * scale : 0.0f;
}

void segment_backward(const SegmentEncoderBackward& b, const Worker& w, const Gradient& to, const SegmentTask& task) {
    const SegmentEncoder& p = b.forward;
    const Memory& m = w.memory;
    const Shape& s = m.shape;
    const Segment segment = segment_of(p, task);
    if (!task.kept) run(p, w, task, segment);
    float* grad = w.scratch.grad;
    gather_grad(p, s, task, b.grad_out, grad);
    for (int64_t i = p.layers - 1; i >= 0 && !cancelled(); --i) {
        if (i > 0)
            scale_rows(s, task.length, m.weights.layer(i - 1).norm2, w.tape(p, task, i - 1).hat2, w.scratch.x);
        else
            load_tokens(p, w, task);
        layer_backward(s, segment, uint32_t(i), m.weights.layer(i), w.tape(p, task, i), w.scratch, to.layer(i));
    }
    float* tokens = m.tokens + task.first_token * p.column_width;
    if (p.project) {
        relu_backward(task.length, s.pitch, w.scratch.x, 1.0f, grad);
        add_rows(task.length, s.pitch, s.pitch, grad, to.project_bias);
        multiply({s.width,
                  s.inputs,
                  task.length,
                  {grad, 1, s.pitch},
                  plain(w.scratch.inputs, s.inputs_pitch),
                  {to.project, s.inputs_pitch},
                  to.project,
                  s.inputs_pitch});
        if (b.grad_columns)
            multiply({task.length,
                      p.column_width,
                      s.width,
                      {grad, s.pitch, 1},
                      packed(m.weights.project.transpose, s.width),
                      {},
                      tokens,
                      p.column_width,
                      false,
                      true});
    } else if (b.grad_columns) {
        for (int64_t t = 0; t < task.length; ++t)
            std::memcpy(tokens + t * p.column_width, grad + t * s.pitch + p.state_width,
                        p.column_width * sizeof(float));
    }
}

// Write the gradients of the parameters for blocks first : first + count, each the sum of its partial gradients in a
// fixed order.
void blocks_backward(const SegmentEncoderBackward& b, const Memory& m, int64_t first, int64_t count, int threads) {
    const SegmentEncoder& p = b.forward;
    parallel_for(count * m.partials, threads, [&](int64_t part, int worker) {
        const Block block(p, first + part / m.partials);
        const int64_t partials = m.partials_of(block.segments(p)), partial = part % m.partials;
        if (partial >= partials) return;
        const Gradient gradient = m.gradient(p, part / m.partials, partial);
        zero(gradient.base, gradient.size);
        const Worker w(m, worker);
        for (int64_t item = partial; item < block.segments(p); item += partials) {
            if (cancelled()) return;
            const SegmentTask task(p, block, item);
            if (task.length) segment_backward(b, w, gradient, task);
        }
    });
    constexpr int64_t kChunk = 4096;
    const int64_t chunks = ceil_div(m.gradient_size, kChunk);
    parallel_for(count * chunks, threads, [&](int64_t item, int) {
        const int64_t index = item / chunks, begin = item % chunks * kChunk;
        const int64_t end = min(begin + kChunk, m.gradient_size);
        float* sum = m.gradient(p, index, 0).base;
        for (int64_t i = 1; i < m.partials_of(Block(p, first + index).segments(p)); ++i)
            for (int64_t j = begin; j < end; ++j) sum[j] += sum[i * m.gradient_size + j];
    });
    parallel_for(count, threads, [&](int64_t index, int) {
        write_gradient(p, m.gradient(p, index, 0), b.grad_parameters + (first + index) * parameter_count(p));
    });
}

// Add up the gradients of rows over subsets, in the order of the subsets.
void scatter(const SegmentEncoderBackward& b, const Memory& m, int threads) {
    const SegmentEncoder& p = b.forward;
    parallel_for(p.policies, threads, [&](int64_t policy, int) {
        float* grad = b.grad_columns + policy * p.states_count * p.column_width;
        zero(grad, p.states_count * p.column_width);
        for (int64_t s = 0; s < p.subsets; ++s)
            for (int64_t t = 0; t < p.offsets[s * (p.clusters + 1) + p.clusters]; ++t) {
                const float* from = m.tokens + ((policy * p.subsets + s) * p.subset_size + t) * p.column_width;
                float* to = grad + int64_t(p.rows[s * p.subset_size + t]) * p.column_width;
                for (int64_t c = 0; c < p.column_width; ++c) to[c] += from[c];
            }
    });
}

}  // namespace

int64_t segment_encoder_workspace(const SegmentEncoder& p, bool backward, int threads) {
    SegmentEncoder measured = p;
    measured.workspace = nullptr;
    return Memory(measured, backward, threads).arena.floats();
}

int64_t segment_encoder_tape(const SegmentEncoder& p) {
    const Shape shape(p);
    int64_t floats = 0;
    for (int64_t i = 0; i < p.subsets * p.clusters; ++i) floats += kept_size(p, shape, i);
    return floats;
}

void segment_encoder(const SegmentEncoder& p, int threads) {
    const Memory m(p, false, threads);
    m.weights.fill(p);
    if (!p.pool)
        for (int64_t i = 0; i < p.policies * p.subsets; ++i) {
            const int64_t used = p.offsets[i % p.subsets * (p.clusters + 1) + p.clusters];
            zero(p.out + (i * p.subset_size + used) * p.width, (p.subset_size - used) * p.width);
        }
    const Block everyone(0, p.policies);
    parallel_for(p.policies * p.subsets * p.clusters, threads, [&](int64_t item, int worker) {
        const SegmentTask task(p, everyone, item);
        float* out = p.out + task.out_index(p);
        if (!task.length) {
            if (p.pool) zero(out, p.width);
            return;
        }
        const Worker w(m, worker);
        const float* x = w.scratch.x;
        run(p, w, task, segment_of(p, task));
        if (p.pool) return mean_rows(task.length, p.width, m.shape.pitch, x, out);
        for (int64_t t = 0; t < task.length; ++t)
            std::memcpy(out + t * p.width, x + t * m.shape.pitch, p.width * sizeof(float));
    });
}

void segment_encoder_backward(const SegmentEncoderBackward& b, int threads) {
    const SegmentEncoder& p = b.forward;
    const Memory m(p, true, threads);
    m.weights.fill(p);
    for (int64_t first = 0; first < p.block_count; first += m.wave)
        blocks_backward(b, m, first, min(m.wave, p.block_count - first), threads);
    if (b.grad_columns) scatter(b, m, threads);
}

}  // namespace sopr::SOPR_LEVEL
