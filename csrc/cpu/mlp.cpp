// Perceptrons on the product tiles. A chunk of rows runs forward through all layers with the values of a unit side by
// side, and backward with those of a row, so weights are read as they are. A gradient of a weight sums over all rows in
// one task, which also updates the weight: nothing depends on the number of threads, and no gradient is stored.
#include <cmath>

#include "cpu/arena.h"
#include "cpu/kernel_table.h"
#include "cpu/pool.h"
#include "cpu/product.h"

namespace sopr::SOPR_LEVEL {
namespace {

constexpr int64_t kRows = 64;   // rows
constexpr int64_t kBlock = 48;  // units of a layer whose weights one task updates
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

    // Values of a chunk's units, of layers 0 to `layers`: those of a layer are (width, kRows).
    int64_t units() const { return kRows * max(units_before(p.layers + 1), width(0) + pitch(0)); }
    float* units(float* first, int64_t layer) const { return first + kRows * units_before(layer); }

    int64_t pitch(int64_t layer) const { return round_up(width(layer), 16) + 16; }  // no power of two: for the cache
    int64_t pitches(int64_t layers) const {
        int64_t floats = 0;
        for (int64_t i = 0; i < layers; ++i) floats += pitch(i);
        return floats;
    }
    // Whole vectors of weights are read, but none past the parameters of the last member.
    bool is_near_end(int64_t layer) const { return bias(layer) + kLanes > floats(); }
};

// Values of layers 0 to layers - 1 by row, (rows, pitch) each, then gradients of layers 0 to `layers`.
struct MlpTape {
    const Network& net;
    float* data;
    int64_t rows;
    int64_t first = 0;  // row of a chunk

    static int64_t floats(const Network& net, int64_t rows) {
        return rows * (net.pitches(net.p.layers) + net.pitches(net.p.layers + 1));
    }
    float* values(int64_t layer) const { return data + rows * net.pitches(layer) + first * net.pitch(layer); }
    float* gradients(int64_t layer) const { return values(layer) + rows * net.pitches(net.p.layers); }
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

// From the gradients of the last layer, computes those of the layers from `first` on.
void backward(const Network& net, int64_t member, int64_t count, const MlpTape& tape, int64_t first, float* copied) {
    for (int64_t layer = net.p.layers; layer > first; --layer) {
        const int64_t depth = net.width(layer), width = net.width(layer - 1), pitch = net.pitch(layer - 1);
        const float* weight = net.parameters(member) + net.weight(layer);
        if (net.is_near_end(layer)) weight = (float*)std::memcpy(copied, weight, depth * width * sizeof(float));
        float* out = tape.gradients(layer - 1);
        multiply(
            {count, width, depth, {tape.gradients(layer), net.pitch(layer), 1}, plain(weight, width), {}, out, pitch});
        const float* values = tape.values(layer - 1);
        for (int64_t row = 0; layer > 1 && row < count; ++row, values += pitch, out += pitch)
            for (int64_t i = 0; i < width; i += kLanes) {
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
void go_back(const Runs& runs, int64_t count, const float* next_states, float* reached, float* out, int64_t pitch) {
    for (int64_t i = 0; i < runs.states; ++i)
        for (int64_t row = 0; row < count; ++row) {
            const float scale = runs.scale[i];
            float &gradient = out[row * pitch + i], &later = reached[row * runs.states + i];
            const float own = gradient;
            if (std::fabs(next_states[i * kRows + row]) >= runs.bound) later = 0;
            gradient += later * scale;
            if (scale > 0) later += own / scale;
        }
}

// Calls output(member, chunk, row, count, units, gradients) for the gradients of the last layer, by row. Writes those
// of the inputs to grad_x, unless it is null. If `of_weights`, calls weights(member, first, count, gradient) with the
// gradients of consecutive parameters, which changes the arrays `changed`.
template <class Output, class Weights>
void differentiate(const Network& net, int threads, float* grad_x, bool of_weights, const Output& output,
                   const Weights& weights, const float* const (&changed)[4]) {
    const Mlp& p = net.p;
    const int64_t chunks = net.chunks(), longest = max(net.runs.length, 1), states = net.runs.states;
    int64_t blocks = 0, widest = 0, copied = 0;
    for (int64_t layer = 1; layer <= p.layers; ++layer) {
        blocks += ceil_div(net.width(layer), kBlock);
        widest = max(widest, net.width(layer - 1));
        if (net.is_near_end(layer)) copied = max(copied, net.width(layer - 1) * net.width(layer));
    }
    // Whole members stay on one core, in its cache; threads share the members that are left over.
    const int64_t whole = of_weights ? p.members - p.members % threads : 0;
    const int64_t group = min(p.members - whole, ceil_div(kTasks * threads, max(chunks, 1)));
    Arena of_chunk, of_block;
    of_chunk.take(net.units() * longest);
    of_chunk.take(copied);
    of_chunk.take(kRows * states);
    if (!of_weights) of_chunk.take(MlpTape::floats(net, kRows));
    of_block.take(kBlock * (widest + 1));
    const WorkerMemory memory(max(of_chunk.bytes(), of_block.bytes()), threads);
    const WorkerMemory tapes(MlpTape::floats(net, p.batch) * sizeof(float),
                             of_weights ? int(max(group, whole ? threads : 0)) : 0);
    const auto run_chunk = [&](int64_t member, int64_t chunk, int worker, int64_t place) {
        const Rows rows = net.rows(chunk);
        Arena arena = memory.arena(worker);
        float *of_steps = arena.take(net.units() * longest), *weight = arena.take(copied);
        float* reached = arena.take(kRows * states);
        std::memset(reached, 0, kRows * states * sizeof(float));
        const auto row = [&](int64_t step) { return rows.first + step * rows.stride; };
        const auto units = [&](int64_t step) { return of_steps + step * net.units(); };
        const auto tape = [&](int64_t step) {
            return of_weights ? MlpTape{net, tapes.arena(int(place)).template take<float>(0), p.batch, row(step)}
                              : MlpTape{net, Arena(arena).take(0), kRows};
        };
        for (int64_t step = 0; step < rows.steps; ++step) {
            forward(net, member, row(step), rows.count, step ? units(step - 1) : nullptr, units(step));
            for (int64_t layer = 0; layer < p.layers; ++layer)
                transpose(net.units(units(step), layer), kRows, net.width(layer), rows.count, tape(step).values(layer),
                          net.pitch(layer), true);
        }
        for (int64_t step = rows.steps - 1; step >= 0; --step) {
            float* outputs = net.units(units(step), p.layers);
            float *of_outputs = tape(step).gradients(p.layers), *of_inputs = tape(step).gradients(0);
            if (step) add_lead(net, member, row(step), rows.count, units(step), outputs);
            output(member, chunk, row(step), rows.count, outputs, of_outputs);
            if (rows.steps > 1)
                go_back(net.runs, rows.count, units(min(step + 1, rows.steps - 1)), reached, of_outputs,
                        net.pitch(p.layers));
            backward(net, member, rows.count, tape(step), grad_x || step ? 0 : 1, weight);
            for (int64_t i = 0; step && i < rows.count; ++i)
                for (int64_t j = 0; j < states; ++j) reached[i * states + j] += of_inputs[i * net.pitch(0) + j];
            for (int64_t i = 0; grad_x && i < rows.count; ++i)
                std::memcpy(grad_x + (member * p.batch + row(step) + i) * net.width(0), of_inputs + i * net.pitch(0),
                            net.width(0) * sizeof(float));
        }
    };
    const auto run_block = [&](int64_t member, int64_t block, int worker, int64_t place) {
        int64_t layer = 1;
        for (; block >= ceil_div(net.width(layer), kBlock); ++layer) block -= ceil_div(net.width(layer), kBlock);
        const int64_t first = block * kBlock, units = min(kBlock, net.width(layer) - first);
        const int64_t depth = net.width(layer - 1), pitch = net.pitch(layer);
        const MlpTape tape{net, tapes.arena(int(place)).template take<float>(0), p.batch};
        const float* gradients = tape.gradients(layer) + first;
        float *of_weight = memory.arena(worker).take(0), *of_bias = of_weight + units * depth;
        const int64_t place_of_weight = net.weight(layer) + first * depth, at = member * net.floats() + place_of_weight;
        multiply({units,
                  depth,
                  p.batch,
                  {gradients, 1, pitch},
                  plain(tape.values(layer - 1), net.pitch(layer - 1)),
                  {},
                  of_weight,
                  depth,
                  false,
                  true,
                  {changed[0] + at, changed[1] + at, changed[2] + at, changed[3] + at}});
        for (int64_t unit = 0; unit < units; unit += kLanes) {
            double sums[kLanes] = {};
            for (int64_t row = 0; row < p.batch; ++row)
                for (int64_t i = 0; i < kLanes; ++i) sums[i] += gradients[row * pitch + unit + i];
            for (int64_t i = 0; i < kLanes; ++i) of_bias[unit + i] = float(sums[i]);
        }
        weights(member, place_of_weight, units * depth, of_weight);
        weights(member, net.bias(layer) + first, units, of_bias);
    };
    parallel_for(whole, threads, [&](int64_t member, int worker) {
        for (int64_t chunk = 0; chunk < chunks; ++chunk) run_chunk(member, chunk, worker, worker);
        for (int64_t block = 0; block < blocks; ++block) run_block(member, block, worker, worker);
    });
    for (int64_t start = whole; start < p.members; start += group) {
        const int64_t members = min(group, p.members - start);
        parallel_for(members * chunks, threads, [&](int64_t item, int worker) {
            run_chunk(start + item / chunks, item % chunks, worker, item / chunks);
        });
        parallel_for(of_weights ? members * blocks : 0, threads, [&](int64_t item, int worker) {
            run_block(start + item / blocks, item % blocks, worker, item / blocks);
        });
    }
}

struct AdamW {
    float beta1, beta2, kept, rate, scale, average_rate;

    explicit AdamW(const MlpStep& p)
        : beta1(float(p.beta1)),
          beta2(float(p.beta2)),
          kept(float(1 - p.rate * p.decay)),
          rate(float(p.rate / (1 - std::pow(p.beta1, double(p.step))))),
          scale(float(1 / std::sqrt(1 - std::pow(p.beta2, double(p.step))))),
          average_rate(p.average_rate) {}

    // Not inlined, since the compiler would forget that the arrays do not overlap, and not use vectors.
    [[gnu::noinline]] void update(int64_t count, const float* __restrict gradient, float* __restrict means,
                                  float* __restrict squares, float* __restrict parameters,
                                  float* __restrict average) const {
        const AdamW rule = *this;
        for (int64_t i = 0; i < count; ++i) {
            means[i] += (1 - rule.beta1) * (gradient[i] - means[i]);
            squares[i] = rule.beta2 * squares[i] + (1 - rule.beta2) * gradient[i] * gradient[i];
            const float size = std::sqrt(squares[i]) * rule.scale + kAdamEpsilon;
            parameters[i] = rule.kept * parameters[i] - rule.rate * means[i] / size;
            if (average) average[i] += rule.average_rate * (parameters[i] - average[i]);
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

// From the last layer's units in `count` rows from `first` on, computes their gradients by row; returns the sum of the
// losses.
// Not inlined, since the sum would not stay in a register.
[[gnu::noinline]] double differentiate_losses(const MlpStep& p, int64_t first, int64_t count, const float* units,
                                              float* gradients, int64_t pitch) {
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
            gradients[row * pitch + i] = weight * loss.slope;
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
    const int64_t outputs = net.width(net.p.layers), batch = net.p.batch;
    differentiate(
        net, threads, p.grad_x, p.grad_parameters,
        [&](int64_t member, int64_t, int64_t row, int64_t count, const float*, float* gradients) {
            const float* grad = p.grad_out + (member * batch + row) * outputs;
            for (int64_t r = 0; r < count; ++r)
                std::memcpy(gradients + r * net.pitch(net.p.layers), grad + r * outputs, outputs * sizeof(float));
        },
        [&](int64_t member, int64_t first, int64_t count, const float* gradient) {
            std::memcpy(p.grad_parameters + member * net.floats() + first, gradient, count * sizeof(float));
        },
        {p.grad_parameters, p.grad_parameters, p.grad_parameters, p.grad_parameters});
}

void mlp_step(const MlpStep& p, int threads) {
    const Network net{p.forward, p.runs};
    const int64_t batch = net.p.batch, chunks = net.chunks();
    const AdamW rule(p);
    const WorkerMemory sums(net.p.members * chunks * int64_t(sizeof(double)), 1);
    double* losses = sums.arena(0).take<double>(0);
    std::memset(losses, 0, net.p.members * chunks * sizeof(double));
    differentiate(
        net, threads, nullptr, true,
        [&](int64_t member, int64_t chunk, int64_t row, int64_t count, const float* units, float* gradients) {
            losses[member * chunks + chunk] +=
                differentiate_losses(p, member * batch + row, count, units, gradients, net.pitch(net.p.layers));
        },
        [&](int64_t member, int64_t first, int64_t count, const float* gradient) {
            const int64_t place = member * net.floats() + first;
            rule.update(count, gradient, p.means + place, p.squares + place, net.p.parameters + place,
                        p.average ? p.average + place : nullptr);
        },
        {p.means, p.squares, net.p.parameters, p.average ? p.average : p.means});
    for (int64_t member = 0; member < net.p.members; ++member) {
        double sum = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += losses[member * chunks + chunk];
        p.losses[member] = float(sum);
    }
}

}  // namespace sopr::SOPR_LEVEL
