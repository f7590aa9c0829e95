// Perceptrons on the product tiles. A chunk of rows runs through all layers with the values of a unit side by side, so
// weights are read as they are. A gradient of a weight sums over all rows in one task, which also updates the weight:
// nothing depends on the number of threads, and no gradient is stored.
#include <cmath>

#include "cpu/arena.h"
#include "cpu/kernel_table.h"
#include "cpu/pool.h"
#include "cpu/product.h"

namespace sopr::SOPR_LEVEL {
namespace {

constexpr int64_t kRows = 64;   // rows
constexpr int64_t kBlock = 48;  // units of a layer whose weights one task updates
constexpr int64_t kSums = 8;    // of gradients of biases
constexpr int64_t kTasks = 8;   // of each thread, at least, before threads wait for each other
constexpr float kAdamEpsilon = 1e-8f;

// Rows of a task: `count` from `first` on, and at each further step of a run as many, `stride` rows later.
struct Rows {
    int64_t first, count, steps, stride;
};

struct Network {
    const Mlp& p;
    const Runs runs = {};

    int64_t width(int64_t layer) const { return p.sizes[layer]; }
    int64_t units_before(int64_t layer) const {
        int64_t units = 0;
        for (int64_t i = 0; i < layer; ++i) units += width(i);
        return units;
    }
    // Where a layer, 1 to `layers`, starts in the parameters of a member: its weight, then its bias.
    int64_t weight(int64_t layer) const {
        int64_t floats = 0;
        for (int64_t i = 1; i < layer; ++i) floats += (width(i - 1) + 1) * width(i);
        return floats;
    }
    int64_t bias(int64_t layer) const { return weight(layer) + width(layer - 1) * width(layer); }
    int64_t floats() const { return weight(p.layers + 1); }
    const float* parameters(int64_t member) const { return p.parameters + member * floats(); }
    const float* x(int64_t member, int64_t row) const {
        return p.x + ((p.shared ? 0 : member * p.batch) + row) * width(0);
    }

    // Runs take longest and come first.
    int64_t single() const { return p.batch - runs.count * runs.length; }
    int64_t chunks() const { return ceil_div(runs.count, kRows) + ceil_div(single(), kRows); }
    Rows rows(int64_t chunk) const {
        const int64_t of_runs = ceil_div(runs.count, kRows), first = (chunk - of_runs) * kRows;
        if (chunk >= of_runs) return {first, min(kRows, single() - first), 1, 0};
        return {single() + chunk * kRows, min(kRows, runs.count - chunk * kRows), runs.length, runs.count};
    }

    // Values or gradients of a chunk's units, of layers 0 to `layers`: those of a layer are (width, kRows).
    int64_t units() const { return kRows * max(units_before(p.layers + 1), width(0) + pitch(0)); }
    float* units(float* first, int64_t layer) const { return first + kRows * units_before(layer); }

    // Tape of a member: a layer's values by row (batch, pitch), of layers 0 to layers - 1, and gradients by unit
    // (width, batch_pitch), of layers 0 to `layers`; inputs have none.
    int64_t pitch(int64_t layer) const { return round_up(width(layer), 16) + 16; }  // no power of two: for the cache
    int64_t batch_pitch() const { return round_up(p.batch, 16) + 16; }
    int64_t values(int64_t layer) const {
        int64_t floats = 0;
        for (int64_t i = 0; i < layer; ++i) floats += p.batch * pitch(i);
        return floats;
    }
    int64_t gradients(int64_t layer) const { return values(p.layers) + units_before(layer) * batch_pitch(); }
    int64_t tape() const { return gradients(p.layers + 1); }
};

// 1 - 2 / (exp(2 |x|) + 1) with the sign of x.
void apply_tanh(float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const Float value = load(x + i), size = value < 0.0f ? -value : value;
        const Float e = exp2_nonpositive(size * -2.885390082f);
        const Float tanh = (1.0f - e) / (1.0f + e);
        store(x + i, value < 0.0f ? -tanh : tanh);
    }
}

// Computes the units of all layers. If a run goes on, its states are those that `before`, the units of its last step,
// have reached.
void forward(const Network& net, int64_t member, int64_t first, int64_t count, const float* before, float* units) {
    const Mlp& p = net.p;
    const int64_t inputs = net.width(0), pitch = net.pitch(0);
    float* by_row = net.units(units, 1);  // of layers computed below
    for (int64_t row = 0; row < count; ++row)
        std::memcpy(by_row + row * pitch, net.x(member, first + row), inputs * sizeof(float));
    transpose(by_row, pitch, count, inputs, units, kRows, true);
    for (int64_t i = 0; before && i < net.runs.states; ++i)
        for (int64_t row = i * kRows; row < i * kRows + count; ++row) {
            const float change = before[kRows * net.units_before(p.layers) + row] * net.runs.scale[i];
            const float reached = before[row] + change, bound = net.runs.bound;
            units[row] = reached > bound ? bound : reached < -bound ? -bound : reached;
        }
    const float* parameters = net.parameters(member);
    for (int64_t layer = 1; layer <= p.layers; ++layer) {
        const int64_t depth = net.width(layer - 1), width = net.width(layer);
        const bool hidden = layer < p.layers;
        float* out = net.units(units, layer);
        multiply({width,
                  count,
                  depth,
                  {parameters + net.weight(layer), depth, 1},
                  plain(net.units(units, layer - 1), kRows),
                  {parameters + net.bias(layer), 1, true},
                  out,
                  kRows,
                  hidden && !p.tanh});
        if (hidden && p.tanh) apply_tanh(out, width * kRows);
    }
}

// From the gradients of the last layer's units, computes those of the layers from `first` on.
void backward(const Network& net, int64_t member, int64_t count, float* units, float* gradients, int64_t first) {
    for (int64_t layer = net.p.layers; layer > first; --layer) {
        const int64_t depth = net.width(layer), width = net.width(layer - 1);
        float* out = net.units(gradients, layer - 1);
        multiply({width,
                  count,
                  depth,
                  {net.parameters(member) + net.weight(layer), 1, width},
                  plain(net.units(gradients, layer), kRows),
                  {},
                  out,
                  kRows});
        const float* values = net.units(units, layer - 1);
        for (int64_t unit = 0; layer > 1 && unit < width; ++unit, values += kRows, out += kRows)
            for (int64_t i = 0; i < count; i += kLanes) {
                const Float value = load(values + i), gradient = load(out + i);
                store(out + i, net.p.tanh ? gradient * (1.0f - value * value) : value > 0.0f ? gradient : Float{});
            }
    }
}

// Adds to predicted changes what the states of a later step are ahead of the logged ones: targets are less by it.
void add_lead(const Network& net, int64_t member, int64_t first, int64_t count, const float* states, float* changes) {
    const float* logged = net.x(member, first);
    for (int64_t i = 0; i < net.runs.states; ++i)
        for (int64_t row = 0; row < count && net.runs.scale[i] > 0; ++row)
            changes[i * kRows + row] += (states[i * kRows + row] - logged[row * net.width(0) + i]) / net.runs.scale[i];
}

// Divides the gradients `reached` of the states that the next step of a run reads, or 0, among what made them: outputs
// of this step, whose own gradients are `out`, and the states that it reads, whose lead counts in these outputs too.
void go_back(const Runs& runs, int64_t count, const float* next_states, float* reached, float* out) {
    for (int64_t i = 0; i < runs.states; ++i)
        for (int64_t row = i * kRows; row < i * kRows + count; ++row) {
            const float scale = runs.scale[i], own = out[row];
            if (std::fabs(next_states[row]) >= runs.bound) reached[row] = 0;
            out[row] += reached[row] * scale;
            if (scale > 0) reached[row] += own / scale;
        }
}

// Calls output(member, chunk, row, count, units, gradients) for the gradients of the last layer's units, then
// input(member, row, count, gradients) with those of the inputs if `of_input`, and weights(member, first, count,
// gradient) with the gradients of consecutive parameters if `of_weights`.
template <class Output, class Input, class Weights>
void differentiate(const Network& net, int threads, bool of_input, bool of_weights, const Output& output,
                   const Input& input, const Weights& weights) {
    const Mlp& p = net.p;
    const int64_t chunks = net.chunks(), longest = max(net.runs.length, 1);
    int64_t blocks = 0, widest = 0;
    for (int64_t layer = 1; layer <= p.layers; ++layer) blocks += ceil_div(net.width(layer), kBlock);
    for (int64_t layer = 0; layer < p.layers; ++layer) widest = max(widest, net.width(layer));
    const int64_t group = min(p.members, ceil_div(kTasks * threads, max(chunks, 1)));  // whose tapes stay in cache
    Arena of_chunk, of_block;
    of_chunk.take(net.units() * longest);
    of_chunk.take(net.units());
    of_chunk.take(kRows * net.runs.states);
    of_block.take(kBlock * (widest + 1));
    const WorkerMemory memory(max(of_chunk.bytes(), of_block.bytes()), threads);
    const WorkerMemory tapes(net.tape() * sizeof(float), of_weights ? int(group) : 0);
    for (int64_t start = 0; start < p.members; start += group) {
        const int64_t members = min(group, p.members - start);
        const auto tape = [&](int64_t i) { return tapes.arena(int(i)).template take<float>(0); };
        parallel_for(members * chunks, threads, [&](int64_t item, int worker) {
            const int64_t i = item / chunks, chunk = item % chunks, member = start + i;
            const Rows rows = net.rows(chunk);
            Arena arena = memory.arena(worker);
            float *of_steps = arena.take(net.units() * longest), *gradients = arena.take(net.units());
            float *reached = arena.take(kRows * net.runs.states), *of_outputs = net.units(gradients, p.layers);
            std::memset(reached, 0, kRows * net.runs.states * sizeof(float));
            const auto row = [&](int64_t step) { return rows.first + step * rows.stride; };
            const auto units = [&](int64_t step) { return of_steps + step * net.units(); };
            for (int64_t step = 0; step < rows.steps; ++step) {
                forward(net, member, row(step), rows.count, step ? units(step - 1) : nullptr, units(step));
                for (int64_t layer = 0; of_weights && layer < p.layers; ++layer)
                    transpose(net.units(units(step), layer), kRows, net.width(layer), rows.count,
                              tape(i) + net.values(layer) + row(step) * net.pitch(layer), net.pitch(layer), true);
            }
            for (int64_t step = rows.steps - 1; step >= 0; --step) {
                float* outputs = net.units(units(step), p.layers);
                if (step) add_lead(net, member, row(step), rows.count, units(step), outputs);
                output(member, chunk, row(step), rows.count, outputs, of_outputs);
                if (rows.steps > 1)
                    go_back(net.runs, rows.count, units(min(step + 1, rows.steps - 1)), reached, of_outputs);
                backward(net, member, rows.count, units(step), gradients, of_input || step ? 0 : 1);
                for (int64_t j = 0; step && j < kRows * net.runs.states; ++j) reached[j] += gradients[j];
                if (of_input) input(member, row(step), rows.count, gradients);
                for (int64_t unit = net.width(0); of_weights && unit < net.units_before(p.layers + 1); ++unit)
                    std::memcpy(tape(i) + net.gradients(0) + unit * net.batch_pitch() + row(step),
                                gradients + unit * kRows, rows.count * sizeof(float));
            }
        });
        if (!of_weights) continue;
        parallel_for(members * blocks, threads, [&](int64_t item, int worker) {
            const int64_t i = item / blocks, member = start + i;
            int64_t layer = 1, block = item % blocks;
            for (; block >= ceil_div(net.width(layer), kBlock); ++layer) block -= ceil_div(net.width(layer), kBlock);
            const int64_t first = block * kBlock, units = min(kBlock, net.width(layer) - first);
            const int64_t depth = net.width(layer - 1), pitch = net.batch_pitch();
            const float* gradients = tape(i) + net.gradients(layer) + first * pitch;
            float *of_weight = memory.arena(worker).take(0), *of_bias = of_weight + units * depth;
            multiply({units,
                      depth,
                      p.batch,
                      {gradients, pitch, 1},
                      plain(tape(i) + net.values(layer - 1), net.pitch(layer - 1)),
                      {},
                      of_weight,
                      depth,
                      false,
                      true});
            for (int64_t unit = 0; unit < units; unit += kSums) {
                const int64_t count = min(kSums, units - unit);
                const float* next[kSums];
                double sums[kSums] = {};  // side by side, since each addition waits for the last one
                for (int64_t i = 0; i < kSums; ++i) next[i] = gradients + (unit + min(i, count - 1)) * pitch;
                for (int64_t row = 0; row < p.batch; ++row)
#pragma GCC unroll 8
                    for (int64_t i = 0; i < kSums; ++i) sums[i] += next[i][row];
                for (int64_t i = 0; i < count; ++i) of_bias[unit + i] = float(sums[i]);
            }
            weights(member, net.weight(layer) + first * depth, units * depth, of_weight);
            weights(member, net.bias(layer) + first, units, of_bias);
        });
    }
}

struct AdamW {
    float beta1, beta2, kept, rate, scale;

    explicit AdamW(const MlpStep& p)
        : beta1(float(p.beta1)),
          beta2(float(p.beta2)),
          kept(float(1 - p.rate * p.decay)),
          rate(float(p.rate / (1 - std::pow(p.beta1, double(p.step))))),
          scale(float(1 / std::sqrt(1 - std::pow(p.beta2, double(p.step))))) {}

    // Not inlined, since the compiler would forget that the arrays do not overlap, and not use vectors.
    [[gnu::noinline]] void update(int64_t count, const float* __restrict gradient, float* __restrict means,
                                  float* __restrict squares, float* __restrict parameters) const {
        const AdamW rule = *this;
        for (int64_t i = 0; i < count; ++i) {
            means[i] += (1 - rule.beta1) * (gradient[i] - means[i]);
            squares[i] = rule.beta2 * squares[i] + (1 - rule.beta2) * gradient[i] * gradient[i];
            const float size = std::sqrt(squares[i]) * rule.scale + kAdamEpsilon;
            parameters[i] = rule.kept * parameters[i] - rule.rate * means[i] / size;
        }
    }
};

struct Loss {
    float value, slope;
};
Loss huber(float error, float threshold) {
    const float size = std::fabs(error);
    if (size <= threshold) return {0.5f * error * error, error};
    return {threshold * (size - 0.5f * threshold), std::copysign(threshold, error)};
}
Loss logistic(float logit, float target) {
    const float e = std::exp(-std::fabs(logit)), probability = (logit < 0 ? e : 1.0f) / (1.0f + e);
    return {(logit > 0 ? logit : 0.0f) - logit * target + std::log1p(e), probability - target};
}

// From the last layer's units in `count` rows from `first` on, computes their gradients; returns the sum of the losses.
// Not inlined, since the sum would not stay in a register.
[[gnu::noinline]] double differentiate_losses(const MlpStep& p, int64_t first, int64_t count, const float* units,
                                              float* gradients) {
    const int64_t outputs = p.forward.sizes[p.forward.layers];
    const float share = 1.0f / float(p.forward.batch);
    double sum = 0;
    for (int64_t i = 0; i < outputs; ++i)
        for (int64_t row = 0; row < count; ++row) {
            const int64_t place = (first + row) * outputs + i;
            const float out = units[i * kRows + row], target = p.target[place];
            const float weight = p.weight ? share * p.weight[place] : share;
            const Loss loss = p.thresholds ? huber(out - target, p.thresholds[i]) : logistic(out, target);
            sum += weight * loss.value;
            gradients[i * kRows + row] = weight * loss.slope;
        }
    return sum;
}

}  // namespace

void mlp(const Mlp& p, int threads) {
    const Network net{p};
    const int64_t outputs = net.width(p.layers);
    const WorkerMemory memory(net.units() * int64_t(sizeof(float)), threads);
    parallel_for(p.members * net.chunks(), threads, [&](int64_t item, int worker) {
        const int64_t member = item / net.chunks();
        const Rows rows = net.rows(item % net.chunks());
        float* units = memory.arena(worker).take(0);
        forward(net, member, rows.first, rows.count, nullptr, units);
        transpose(net.units(units, p.layers), kRows, outputs, rows.count,
                  p.out + (member * p.batch + rows.first) * outputs, outputs, false);
    });
}

void mlp_backward(const MlpBackward& p, int threads) {
    const Network net{p.forward};
    const int64_t outputs = net.width(net.p.layers), inputs = net.width(0), batch = net.p.batch;
    differentiate(
        net, threads, p.grad_x, p.grad_parameters,
        [&](int64_t member, int64_t, int64_t row, int64_t count, const float*, float* gradients) {
            const float* grad = p.grad_out + (member * batch + row) * outputs;
            for (int64_t i = 0; i < outputs; ++i)
                for (int64_t r = 0; r < count; ++r) gradients[i * kRows + r] = grad[r * outputs + i];
        },
        [&](int64_t member, int64_t row, int64_t count, const float* gradients) {
            transpose(gradients, kRows, inputs, count, p.grad_x + (member * batch + row) * inputs, inputs, false);
        },
        [&](int64_t member, int64_t first, int64_t count, const float* gradient) {
            std::memcpy(p.grad_parameters + member * net.floats() + first, gradient, count * sizeof(float));
        });
}

void mlp_step(const MlpStep& p, int threads) {
    const Network net{p.forward, p.runs};
    const int64_t batch = net.p.batch, chunks = net.chunks();
    const AdamW rule(p);
    const WorkerMemory sums(net.p.members * chunks * int64_t(sizeof(double)), 1);
    double* losses = sums.arena(0).take<double>(0);
    std::memset(losses, 0, net.p.members * chunks * sizeof(double));
    differentiate(
        net, threads, false, true,
        [&](int64_t member, int64_t chunk, int64_t row, int64_t count, const float* units, float* gradients) {
            losses[member * chunks + chunk] += differentiate_losses(p, member * batch + row, count, units, gradients);
        },
        [](int64_t, int64_t, int64_t, const float*) {},
        [&](int64_t member, int64_t first, int64_t count, const float* gradient) {
            const int64_t place = member * net.floats() + first;
            float* parameters = net.p.parameters + place;
            rule.update(count, gradient, p.means + place, p.squares + place, parameters);
            for (int64_t i = 0; p.average && i < count; ++i)
                p.average[place + i] += p.average_rate * (parameters[i] - p.average[place + i]);
        });
    for (int64_t member = 0; member < net.p.members; ++member) {
        double sum = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += losses[member * chunks + chunk];
        p.losses[member] = float(sum);
    }
}

}  // namespace sopr::SOPR_LEVEL
