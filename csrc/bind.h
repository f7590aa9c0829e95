// What the bindings of both modules share. Kernels take addresses, sizes and options by keyword, or by position in the
// order of module.keywords[name]: pybind11 needs about 0.5 us per keyword.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>

#include "kernels.h"
#include "philox.h"

namespace py = pybind11;

namespace sopr {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// Binds kernels to a module. `Run` calls a kernel without the GIL; `where` names the last keyword, "threads" or
// "stream".
template <class Run>
struct Binder {
    py::module_& module;
    const char* where;

    explicit Binder(py::module_& module, const char* where) : module(module), where(where) {
        module.attr("keywords") = py::dict();
    }

    // module.name(keywords..., where) runs kernel(arguments(...), where).
    template <class Arguments, class Where, class... Values>
    void kernel(const char* name, void (*kernel)(const Arguments&, Where), Arguments (*arguments)(Values...),
                const char* const (&keywords)[sizeof...(Values)]) const {
        bind(name, kernel, arguments, keywords, std::index_sequence_for<Values...>{});
    }

  private:
    template <class Arguments, class Where, class... Values, size_t... I>
    void bind(const char* name, void (*kernel)(const Arguments&, Where), Arguments (*arguments)(Values...),
              const char* const (&keywords)[sizeof...(Values)], std::index_sequence<I...>) const {
        module.def(
            name, [=](Values... values, Address place) { Run()([&] { kernel(arguments(values...), Where(place)); }); },
            py::arg(keywords[I])..., py::arg(where));
        module.attr("keywords")[name] = py::make_tuple(keywords[I]...);
    }
};

// The keywords of each kernel, and the struct made of their values.

constexpr const char* kSegmentMean[] = {"x", "offsets", "out", "segments", "width"};
inline SegmentMean segment_mean_of(Address x, Address offsets, Address out, int64_t segments, int64_t width) {
    return {at<float>(x), at<int32_t>(offsets), at<float>(out), segments, width};
}

constexpr const char* kSegmentMeanBackward[] = {"grad_out", "offsets", "grad_x", "segments", "width"};
inline SegmentMeanBackward segment_mean_backward_of(Address grad_out, Address offsets, Address grad_x, int64_t segments,
                                                    int64_t width) {
    return {at<float>(grad_out), at<int32_t>(offsets), at<float>(grad_x), segments, width};
}

constexpr const char* kSegmentDropout[] = {"x",           "offsets", "out",   "segments", "width",       "rng",
                                           "probability", "level",   "layer", "site",     "segment_base"};
inline SegmentDropout segment_dropout_of(Address x, Address offsets, Address out, int64_t segments, int64_t width,
                                         Address rng, float probability, uint32_t level, uint32_t layer, uint32_t site,
                                         int64_t segment_base) {
    const Dropout dropout = {at<int64_t>(rng), probability, level, layer, site, segment_base};
    return {at<float>(x), at<int32_t>(offsets), at<float>(out), segments, width, dropout};
}

constexpr const char* kSegmentAttention[] = {
    "q",   "k",     "v",   "offsets", "out",   "statistics", "segments",     "heads",
    "dim", "scale", "rng", "dropout", "level", "layer",      "segment_base", "order"};
inline SegmentAttention segment_attention_of(Address q, Address k, Address v, Address offsets, Address out,
                                             Address statistics, int64_t segments, int64_t heads, int64_t dim,
                                             float scale, Address rng, float dropout, uint32_t level, uint32_t layer,
                                             int64_t segment_base, Address order) {
    return {at<float>(q),
            at<float>(k),
            at<float>(v),
            at<int32_t>(offsets),
            at<float>(out),
            at<float>(statistics),
            segments,
            heads,
            dim,
            scale,
            {at<int64_t>(rng), dropout, level, layer, kAttentionWeights, segment_base},
            at<int32_t>(order)};
}

constexpr const char* kSegmentAttentionBackward[] = {
    "q",        "k",     "v",   "offsets", "out", "statistics", "grad_out", "grad_q", "grad_k",       "grad_v",
    "segments", "heads", "dim", "scale",   "rng", "dropout",    "level",    "layer",  "segment_base", "order"};
inline SegmentAttentionBackward segment_attention_backward_of(Address q, Address k, Address v, Address offsets,
                                                              Address out, Address statistics, Address grad_out,
                                                              Address grad_q, Address grad_k, Address grad_v,
                                                              int64_t segments, int64_t heads, int64_t dim, float scale,
                                                              Address rng, float dropout, uint32_t level,
                                                              uint32_t layer, int64_t segment_base, Address order) {
    return {segment_attention_of(q, k, v, offsets, out, statistics, segments, heads, dim, scale, rng, dropout, level,
                                 layer, segment_base, order),
            at<float>(grad_out), at<float>(grad_q), at<float>(grad_k), at<float>(grad_v)};
}

constexpr const char* kKMeansAssign[] = {"points",   "centroids", "labels",   "distances",
                                         "problems", "count",     "clusters", "width"};
inline KMeansAssign kmeans_assign_of(Address points, Address centroids, Address labels, Address distances,
                                     int64_t problems, int64_t count, int64_t clusters, int64_t width) {
    return {at<float>(points),
            at<float>(centroids),
            at<int32_t>(labels),
            at<float>(distances),
            problems,
            count,
            clusters,
            width};
}

constexpr const char* kKMeansInit[] = {"points",   "seeds", "rows",    "problems", "count",
                                       "clusters", "width", "restart", "plus_plus"};
inline KMeansInit kmeans_init_of(Address points, Address seeds, Address rows, int64_t problems, int64_t count,
                                 int64_t clusters, int64_t width, int64_t restart, bool plus_plus) {
    return {at<float>(points), at<int64_t>(seeds), at<int32_t>(rows), problems, count, clusters, width,
            restart,           plus_plus};
}

constexpr const char* kKMeans[] = {"points",   "centroids", "labels",   "rows",  "offsets", "inertia",  "steps_done",
                                   "problems", "count",     "clusters", "width", "steps",   "tolerance"};
inline KMeans kmeans_of(Address points, Address centroids, Address labels, Address rows, Address offsets,
                        Address inertia, Address steps_done, int64_t problems, int64_t count, int64_t clusters,
                        int64_t width, int64_t steps, double tolerance) {
    return {at<float>(points),
            at<float>(centroids),
            at<int32_t>(labels),
            at<int32_t>(rows),
            at<int32_t>(offsets),
            at<double>(inertia),
            at<int32_t>(steps_done),
            problems,
            count,
            clusters,
            width,
            steps,
            tolerance};
}

constexpr const char* kSortByCluster[] = {"labels", "rows", "offsets", "problems", "count", "clusters"};
inline SortByCluster sort_by_cluster_of(Address labels, Address rows, Address offsets, int64_t problems, int64_t count,
                                        int64_t clusters) {
    return {at<int32_t>(labels), at<int32_t>(rows), at<int32_t>(offsets), problems, count, clusters};
}

inline void bind_segment_encoder(py::module_& m) {
    py::class_<SegmentEncoder>(m, "SegmentEncoder", py::module_local())
        .def(py::init([](Address states, Address columns, Address rows, Address offsets, Address order,
                         Address parameters, Address rng, Address out, int64_t policies, int64_t subsets,
                         int64_t states_count, int64_t state_width, int64_t column_width, int64_t subset_size,
                         int64_t clusters, int64_t width, int64_t layers, int64_t heads, int64_t feedforward,
                         int64_t longest, int64_t segment_base, float dropout, uint32_t level, bool project, bool pool,
                         bool bf16, Address tape, int64_t kept, Address blocks, int64_t block_count) {
                 return SegmentEncoder{at<float>(states),
                                       at<float>(columns),
                                       at<int32_t>(rows),
                                       at<int32_t>(offsets),
                                       at<int32_t>(order),
                                       at<float>(parameters),
                                       at<float>(out),
                                       nullptr,
                                       policies,
                                       subsets,
                                       states_count,
                                       state_width,
                                       column_width,
                                       subset_size,
                                       clusters,
                                       width,
                                       layers,
                                       heads,
                                       feedforward,
                                       longest,
                                       Dropout{at<int64_t>(rng), dropout, level, 0, 0, segment_base},
                                       project,
                                       pool,
                                       bf16,
                                       at<float>(tape),
                                       kept,
                                       at<int32_t>(blocks),
                                       block_count};
             }),
             py::kw_only(), py::arg("states"), py::arg("columns"), py::arg("rows"), py::arg("offsets"),
             py::arg("order") = 0, py::arg("parameters"), py::arg("rng"), py::arg("out"), py::arg("policies"),
             py::arg("subsets"), py::arg("states_count"), py::arg("state_width"), py::arg("column_width"),
             py::arg("subset_size"), py::arg("clusters"), py::arg("width"), py::arg("layers"), py::arg("heads"),
             py::arg("feedforward"), py::arg("longest") = 0, py::arg("segment_base"), py::arg("dropout"),
             py::arg("level"), py::arg("project"), py::arg("pool"), py::arg("bf16"), py::arg("tape") = 0,
             py::arg("kept") = 0, py::arg("blocks") = 0, py::arg("block_count") = 1);
}

}  // namespace sopr
