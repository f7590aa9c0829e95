#include "cpu/segment_encoder.h"

#include "cpu/pool.h"
#include "cpu/table.h"

namespace sopr::SOPR_LEVEL {
namespace {

// Heads must consist of whole pairs.
bool uses_bf16(const SegmentEncoder& p) { return kBf16 && p.bf16 && p.width / p.heads % 2 == 0; }

// The workspace: packed parameters, memory of each worker, partial gradients of parameters, gradients of tokens.
struct Memory {
    Shape shape;
    bool backward, bf16;
    Arena arena;
    PackedWeights weights;
    int64_t tape_size, worker_size, partials = 0, gradient_size = 0;
    float *workers, *gradients = nullptr, *tokens = nullptr;
    int64_t longest;

    Memory(const SegmentEncoder& p, bool backward, int threads)
        : shape(p),
          backward(backward),
          bf16(uses_bf16(p)),
          arena(p.workspace),
          weights(arena, p, backward, bf16),
          longest(p.longest) {
        Arena measure;
        Scratch(measure, shape, longest, backward, bf16);
        const int64_t scratch = measure.floats();
        Tape(measure, shape, longest, backward);
        tape_size = measure.floats() - scratch;
        worker_size = scratch + (backward ? max(p.layers, 1) : 1) * tape_size;
        const int64_t segments = p.policies * p.subsets * p.clusters;
        workers = arena.take(worker_size * (min(threads, segments)));
        if (!backward) return;
        Arena measure_gradient;
        gradient_size = Gradient(measure_gradient, p).size;
        // 8 to 32, about 32 MB: few enough for the cache, enough for many threads. Independent of `threads`, so that
        // results are too.
        partials = min(max((int64_t(1) << 23) / gradient_size, 8), 32);
        partials = min(partials, max(segments, 1));
        gradients = arena.take(partials * gradient_size);
        tokens = arena.take(p.policies * p.subsets * p.subset_size * p.column_width);
    }

    Gradient gradient(const SegmentEncoder& p, int64_t partial) const {
        Arena partial_arena(gradients + partial * gradient_size);
        return Gradient(partial_arena, p);
    }
};

struct Worker {
    const Memory& memory;
    Arena arena;
    Scratch scratch;

    Worker(const Memory& m, int worker)
        : memory(m),
          arena(m.workers + worker * m.worker_size),
          scratch(arena, m.shape, m.longest, m.backward, m.bf16) {}
    Tape tape(int64_t index) const {
        Arena tape_arena(reinterpret_cast<float*>(arena.next()) + index * memory.tape_size);
        return Tape(tape_arena, memory.shape, memory.longest, memory.backward);
    }
};

// Segment order[item / P] of policy item % P.
struct SegmentTask {
    int64_t policy, subset, number, begin, length, first_token;
    const int32_t* rows;

    SegmentTask(const SegmentEncoder& p, int64_t item) {
        const int64_t index = p.order[item / p.policies], cluster = index % p.clusters;
        policy = item % p.policies;
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

// Run all layers; return the output of the last. Forward alone reuses one tape.
const float* run(const SegmentEncoder& p, const Worker& w, const SegmentTask& task, const Segment& segment) {
    const Memory& m = w.memory;
    const Shape& s = m.shape;
    Tape tape = w.tape(0);
    if (p.project) {
        gather(p, task, s.inputs_pitch, w.scratch.inputs);
        multiply({task.length,
                  s.width,
                  s.inputs,
                  {w.scratch.inputs, s.inputs_pitch, 1},
                  packed(m.weights.project.weight, s.inputs),
                  {m.weights.project.bias},
                  tape.x,
                  s.pitch,
                  true});
        // An infinite input times the zero weights of the padding is NaN.
        for (int64_t t = 0; t < task.length; ++t)
            for (int64_t e = s.width; e < s.pitch; ++e) tape.x[t * s.pitch + e] = 0.0f;
    } else {
        gather(p, task, s.pitch, tape.x);
    }
    const float* out = tape.x;
    for (int64_t i = 0; i < p.layers && !cancelled(); ++i) {
        if (m.backward) tape = w.tape(i);
        float* to = !m.backward ? tape.x : i + 1 < p.layers ? w.tape(i + 1).x : w.scratch.branch;
        layer_forward(s, segment, uint32_t(i), m.weights.layer(i), tape, w.scratch, to);
        out = to;
    }
    return out;
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
    run(p, w, task, segment);
    float* grad = w.scratch.grad;
    gather_grad(p, s, task, b.grad_out, grad);
    for (int64_t i = p.layers - 1; i >= 0 && !cancelled(); --i)
        layer_backward(s, segment, uint32_t(i), m.weights.layer(i), w.tape(i), w.scratch, to.layer(i));
    float* tokens = m.tokens + task.first_token * p.column_width;
    if (p.project) {
        relu_backward(task.length, s.pitch, w.tape(0).x, 1.0f, grad);
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

void segment_encoder(const SegmentEncoder& p, int threads) {
    const Memory m(p, false, threads);
    m.weights.fill(p);
    if (!p.pool)
        for (int64_t i = 0; i < p.policies * p.subsets; ++i) {
            const int64_t used = p.offsets[i % p.subsets * (p.clusters + 1) + p.clusters];
            zero(p.out + (i * p.subset_size + used) * p.width, (p.subset_size - used) * p.width);
        }
    parallel_for(p.policies * p.subsets * p.clusters, threads, [&](int64_t item, int worker) {
        const SegmentTask task(p, item);
        float* out = p.out + task.out_index(p);
        if (!task.length) {
            if (p.pool) zero(out, p.width);
            return;
        }
        const float* x = run(p, Worker(m, worker), task, segment_of(p, task));
        if (p.pool) return mean_rows(task.length, p.width, m.shape.pitch, x, out);
        for (int64_t t = 0; t < task.length; ++t)
            std::memcpy(out + t * p.width, x + t * m.shape.pitch, p.width * sizeof(float));
    });
}

void segment_encoder_backward(const SegmentEncoderBackward& b, int threads) {
    const SegmentEncoder& p = b.forward;
    const Memory m(p, true, threads);
    m.weights.fill(p);
    parallel_for(m.partials, threads, [&](int64_t partial, int worker) {
        const Gradient gradient = m.gradient(p, partial);
        zero(gradient.base, gradient.size);
        const Worker w(m, worker);
        for (int64_t item = partial; item < p.policies * p.subsets * p.clusters; item += m.partials) {
            if (cancelled()) return;
            const SegmentTask task(p, item);
            if (task.length) segment_backward(b, w, gradient, task);
        }
    });
    sum_gradients(p, m.gradient(p, 0), m.partials, m.gradient_size, b.grad_parameters, threads);
    if (b.grad_columns) scatter(b, m, threads);
}

}  // namespace sopr::SOPR_LEVEL
