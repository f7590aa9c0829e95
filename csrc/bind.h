// What the bindings of both modules share. A kernel takes the fields of its parameters by position, nested ones too, as
// kernels.h lists them; arrays are addresses. module.keywords[name] has their names, which Python checks.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels.h"

namespace py = pybind11;

namespace sopr {

using Address = std::uintptr_t;

// A Python value, which becomes a number or an address.
struct Value {
    py::handle handle;

    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
    operator T() const {
        return handle.cast<T>();
    }
    template <class T>
    operator T*() const {
        return reinterpret_cast<T*>(handle.cast<Address>());
    }
};

template <class P, class Indices, class = void>
struct IsMadeOf : std::false_type {};

template <class P, size_t... i>
struct IsMadeOf<P, std::index_sequence<i...>, std::void_t<decltype(P{(void(i), std::declval<Value>())...})>>
    : std::true_type {};

// Number of fields of P, which has at most `n`.
template <class P, size_t n = 48>
constexpr size_t field_count() {
    if constexpr (IsMadeOf<P, std::make_index_sequence<n>>::value) {
        return n;
    } else {
        return field_count<P, n - 1>();
    }
}

template <class P, size_t... i>
P made_of(const py::args& values, std::index_sequence<i...>) {
    return P{Value{values[i]}...};
}

template <class P>
P made_of(const py::args& values) {
    if (values.size() != field_count<P>()) throw py::type_error("wrong number of fields");
    return made_of<P>(values, std::make_index_sequence<field_count<P>()>());
}

// Binds kernels to a module. `Run` calls a kernel without the GIL; `Where` is the type of its last argument: a number
// of threads, or a stream.
template <class Run, class Where>
struct Binder {
    py::module_& module;

    explicit Binder(py::module_& module) : module(module) { module.attr("keywords") = py::dict(); }

    // module.name(where, fields...) runs kernel(P{fields...}, where).
    template <class P>
    void kernel(const char* name, void (*kernel)(const P&, Where), const std::string& fields) const {
        if (size_t(std::count(fields.begin(), fields.end(), ',')) + 1 != field_count<P>()) throw std::logic_error(name);
        module.def(name, [kernel](Address where, const py::args& values) {
            const P p = made_of<P>(values);
            Run()([&] { kernel(p, Where(where)); });
        });
        module.attr("keywords")[name] = fields;
    }
};

constexpr const char* kSegmentMean = "x, offsets, out, segments, width";
constexpr const char* kSegmentMeanBackward = "grad_out, offsets, grad_x, segments, width";
constexpr const char* kSegmentDropout =
    "x, offsets, out, segments, width, rng, probability, level, layer, site, segment_base";
const std::string kSegmentAttention =
    "q, k, v, offsets, out, statistics, segments, heads, dim, scale, rng, dropout, level, layer, site, segment_base, "
    "order";
const std::string kSegmentAttentionBackward = kSegmentAttention + ", grad_out, grad_q, grad_k, grad_v";
const std::string kKMeansInit = "points, seeds, rows, problems, count, clusters, width";
const std::string kKMeans =
    "points, centroids, labels, rows, offsets, inertia, steps_done, problems, count, clusters, width, steps, tolerance";
const std::string kSegmentEncoder =
    "states, columns, rows, offsets, order, parameters, out, workspace, policies, subsets, states_count, state_width, "
    "column_width, subset_size, clusters, width, layers, heads, feedforward, longest, rng, dropout, level, layer, "
    "site, "
    "segment_base, project, pool, bf16, tape, kept, blocks, block_count, long_tiles";
const std::string kSegmentEncoderBackward = kSegmentEncoder + ", grad_out, grad_parameters, grad_columns";
const std::string kMlp = "x, parameters, sizes, out, members, batch, layers, shared, tanh";
const std::string kMlpBackward = kMlp + ", grad_out, grad_x, grad_parameters";
const std::string kMlpStep =
    kMlp +
    ", target, weight, thresholds, losses, means, squares, average, step, rate, beta1, beta2, decay, average_rate, "
    "scale, runs, run_length, states, bound";

}  // namespace sopr
