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

struct Network {
    const Mlp& p;

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

    int64_t chunks() const { return ceil_div(p.batch, kRows); }
    int64_t rows(int64_t chunk) const { return min(kRows, p.batch - chunk * kRows); }

    // Scratch of a chunk: its inputs by row, and a layer's units (width, kRows), of layers 0 to `layers`.
    int64_t pitch(int64_t layer) const { return round_up(width(layer), 16) + 16; }  // no power of two: for the cache
    int64_t scratch() const { return kRows * (pitch(0) + units_before(p.layers + 1)); }
    float* units(float* scratch, int64_t layer) const { return scratch + kRows * (pitch(0) + units_before(layer)); }

    // Tape of a member: a layer's values by row (rows, pitch), of layers 0 to layers - 1, and gradients by unit (width,
    // batch_pitch), of layers 1 to `layers`.
    int64_t batch_pitch() const { return chunks() * kRows + 16; }
    int64_t values(int64_t layer) const {
        int64_t floats = 0;
        for (int64_t i = 0; i < layer; ++i) floats += chunks() * kRows * pitch(i);
        return floats;
    }
    int64_t gradients(int64_t layer) const {
        return values(p.layers) + (units_before(layer) - width(0)) * batch_pitch();
    }
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

// Computes the units of all layers.
void forward(const Network& net, int64_t member, int64_t chunk, float* scratch) {
    const Mlp& p = net.p;
    const int64_t count = net.rows(chunk), inputs = net.width(0), pitch = net.pitch(0);
    const float* x = p.x + ((p.shared ? 0 : member * p.batch) + chunk * kRows) * inputs;
    for (int64_t row = 0; row < count; ++row) std::memcpy(scratch + row * pitch, x + row * inputs, inputs * 4);
    transpose(scratch, pitch, count, inputs, net.units(scratch, 0), kRows, true);
    const float* parameters = net.parameters(member);
    for (int64_t layer = 1; layer <= p.layers; ++layer) {
        const int64_t depth = net.width(layer - 1), width = net.width(layer);
        const bool hidden = layer < p.layers;
        float* units = net.units(scratch, layer);
        multiply({width,
                  count,
                  depth,
                  {parameters + net.weight(layer), depth, 1},
                  plain(net.units(scratch, layer - 1), kRows),
                  {parameters + net.bias(layer), 1, true},
                  units,
                  kRows,
                  hidden && !p.tanh});
        if (hidden && p.tanh) apply_tanh(units, width * kRows);
    }
}

// From the gradients of a layer's units, computes those of the layer before, (width, out_row).
void backward(const Network& net, int64_t member, int64_t chunk, float* scratch, int64_t layer, const float* gradients,
              float* out, int64_t out_row) {
    const int64_t depth = net.width(layer), width = net.width(layer - 1), count = net.rows(chunk);
    multiply({width,
              count,
              depth,
              {net.parameters(member) + net.weight(layer), 1, width},
              plain(gradients, net.batch_pitch()),
              {},
              out,
              out_row});
    if (layer == 1) return;
    const float* units = net.units(scratch, layer - 1);
    for (int64_t unit = 0; unit < width; ++unit)
        for (int64_t i = 0; i < count; i += kLanes) {
            const Float value = load(units + unit * kRows + i), gradient = load(out + unit * out_row + i);
            store(out + unit * out_row + i, net.p.tanh     ? gradient * (1.0f - value * value)
                                            : value > 0.0f ? gradient
                                                           : Float{});
        }
}

// Calls output(member, chunk, units, gradients) for the gradients (outputs, batch_pitch) of the last layer's units,
// then input(member, chunk, gradients) with those of the inputs if `of_input`, and weights(member, first, count,
// gradient) with the gradients of consecutive parameters if `of_weights`.
template <class Output, class Input, class Weights>
void differentiate(const Network& net, int threads, bool of_input, bool of_weights, const Output& output,
                   const Input& input, const Weights& weights) {
    const Mlp& p = net.p;
    const int64_t chunks = net.chunks(), pitch = net.batch_pitch();
    int64_t blocks = 0, widest = 0;
    for (int64_t layer = 1; layer <= p.layers; ++layer) blocks += ceil_div(net.width(layer), kBlock);
    for (int64_t layer = 0; layer < p.layers; ++layer) widest = max(widest, net.width(layer));
    const int64_t group = min(p.members, ceil_div(kTasks * threads, max(chunks, 1)));  // whose tapes stay in cache
    Arena measure;
    measure.take(net.scratch());
    measure.take(max(kRows * net.width(0), kBlock * (widest + 1)));
    const WorkerMemory memory(measure.bytes(), threads);
    const WorkerMemory tapes(net.tape() * sizeof(float), int(group));
    for (int64_t start = 0; start < p.members; start += group) {
        const int64_t members = min(group, p.members - start);
        const auto tape = [&](int64_t i) { return tapes.arena(int(i)).template take<float>(0); };
        parallel_for(members * chunks, threads, [&](int64_t item, int worker) {
            const int64_t i = item / chunks, chunk = item % chunks, member = start + i, begin = chunk * kRows;
            const int64_t count = net.rows(chunk);
            Arena arena = memory.arena(worker);
            float *scratch = arena.take(net.scratch()), *input_gradients = arena.take(kRows * net.width(0));
            forward(net, member, chunk, scratch);
            for (int64_t layer = 0; of_weights && layer < p.layers; ++layer)
                transpose(net.units(scratch, layer), kRows, net.width(layer), count,
                          tape(i) + net.values(layer) + begin * net.pitch(layer), net.pitch(layer), true);
            output(member, chunk, net.units(scratch, p.layers), tape(i) + net.gradients(p.layers) + begin);
            for (int64_t layer = p.layers; layer > 1; --layer)
                backward(net, member, chunk, scratch, layer, tape(i) + net.gradients(layer) + begin,
                         tape(i) + net.gradients(layer - 1) + begin, pitch);
            if (!of_input) return;
            backward(net, member, chunk, scratch, 1, tape(i) + net.gradients(1) + begin, input_gradients, kRows);
            input(member, chunk, input_gradients);
        });
        if (!of_weights) continue;
        parallel_for(members * blocks, threads, [&](int64_t item, int worker) {
            const int64_t i = item / blocks, member = start + i;
            int64_t layer = 1, block = item % blocks;
            for (; block >= ceil_div(net.width(layer), kBlock); ++layer) block -= ceil_div(net.width(layer), kBlock);
            const int64_t first = block * kBlock, units = min(kBlock, net.width(layer) - first);
            const int64_t depth = net.width(layer - 1);
            const float* gradients = tape(i) + net.gradients(layer) + first * pitch;
            Arena arena = memory.arena(worker);
            arena.take(net.scratch());
            float *of_weight = arena.take(kBlock * (depth + 1)), *of_bias = of_weight + units * depth;
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

}  // namespace

void mlp(const Mlp& p, int threads) {
    const Network net{p};
    const int64_t outputs = net.width(p.layers);
    const WorkerMemory memory(net.scratch() * int64_t(sizeof(float)), threads);
    parallel_for(p.members * net.chunks(), threads, [&](int64_t item, int worker) {
        const int64_t member = item / net.chunks(), chunk = item % net.chunks();
        float* scratch = memory.arena(worker).take(0);
        forward(net, member, chunk, scratch);
        transpose(net.units(scratch, p.layers), kRows, outputs, net.rows(chunk),
                  p.out + (member * p.batch + chunk * kRows) * outputs, outputs, false);
    });
}

void mlp_backward(const MlpBackward& p, int threads) {
    const Network net{p.forward};
    const int64_t outputs = net.width(net.p.layers), inputs = net.width(0), batch = net.p.batch;
    differentiate(
        net, threads, p.grad_x, p.grad_parameters,
        [&](int64_t member, int64_t chunk, const float*, float* gradients) {
            const float* grad = p.grad_out + (member * batch + chunk * kRows) * outputs;
            for (int64_t i = 0; i < outputs; ++i)
                for (int64_t row = 0; row < net.rows(chunk); ++row)
                    gradients[i * net.batch_pitch() + row] = grad[row * outputs + i];
        },
        [&](int64_t member, int64_t chunk, const float* gradients) {
            transpose(gradients, kRows, inputs, net.rows(chunk), p.grad_x + (member * batch + chunk * kRows) * inputs,
                      inputs, false);
        },
        [&](int64_t member, int64_t first, int64_t count, const float* gradient) {
            std::memcpy(p.grad_parameters + member * net.floats() + first, gradient, count * sizeof(float));
        });
}

void mlp_step(const MlpStep& p, int threads) {
    const Network net{p.forward};
    const int64_t outputs = net.width(net.p.layers), batch = net.p.batch, chunks = net.chunks();
    const float share = 1.0f / float(batch);
    const AdamW rule(p);
    const WorkerMemory sums(net.p.members * chunks * int64_t(sizeof(double)), 1);
    double* losses = sums.arena(0).take<double>(0);
    differentiate(
        net, threads, false, true,
        [&](int64_t member, int64_t chunk, const float* units, float* gradients) {
            const int64_t begin = (member * batch + chunk * kRows) * outputs;
            double sum = 0;
            for (int64_t i = 0; i < outputs; ++i)
                for (int64_t row = 0; row < net.rows(chunk); ++row) {
                    const int64_t place = begin + row * outputs + i;
                    const float out = units[i * kRows + row], target = p.target[place];
                    const float weight = p.weight ? share * p.weight[place] : share;
                    const Loss loss = p.thresholds ? huber(out - target, p.thresholds[i]) : logistic(out, target);
                    sum += weight * loss.value;
                    gradients[i * net.batch_pitch() + row] = weight * loss.slope;
                }
            losses[member * chunks + chunk] = sum;
        },
        [](int64_t, int64_t, const float*) {},
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
