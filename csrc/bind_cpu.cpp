// The CPU kernels for Python: addresses and sizes in, the GIL released while a kernel runs.
#include <pybind11/stl.h>

#include <cstdlib>

#include "bind_encoder.h"
#include "cpu/dispatch.h"
#include "philox.h"

using namespace sopr;

PYBIND11_MODULE(_cpu, m) {
    static const Level level = choose_level(std::getenv("SOPR_FAST_ISA"));
    static const Table& kernels = *level.table;

    m.attr("version") = SOPR_VERSION;
    m.attr("isa") = level.name;
    std::vector<std::string> names;
    for (const Level& supported : supported_levels()) names.emplace_back(supported.name);
    m.attr("supported_isas") = names;

    m.def(
        "segment_mean",
        [](Address x, Address offsets, Address out, int64_t segments, int64_t width, int threads) {
            kernels.segment_mean({at<float>(x), at<int32_t>(offsets), at<float>(out), segments, width}, threads);
        },
        py::call_guard<py::gil_scoped_release>());
    m.def(
        "segment_mean_backward",
        [](Address grad_out, Address offsets, Address grad_x, int64_t segments, int64_t width, int threads) {
            kernels.segment_mean_backward(
                {at<float>(grad_out), at<int32_t>(offsets), at<float>(grad_x), segments, width}, threads);
        },
        py::call_guard<py::gil_scoped_release>());

    m.def(
        "segment_dropout",
        [](Address x, Address offsets, Address out, int64_t segments, int64_t width, Address rng, float probability,
           uint32_t level, uint32_t layer, uint32_t site, int64_t segment_base, int threads) {
            kernels.segment_dropout({at<float>(x), at<int32_t>(offsets), at<float>(out), segments, width,
                                     Dropout{at<int64_t>(rng), probability, level, layer, site, segment_base}},
                                    threads);
        },
        py::call_guard<py::gil_scoped_release>());
    m.def(
        "segment_attention",
        [](Address q, Address k, Address v, Address offsets, Address out, Address statistics, int64_t segments,
           int64_t heads, int64_t dim, float scale, Address rng, float probability, uint32_t level, uint32_t layer,
           int64_t segment_base, int threads) {
            kernels.segment_attention(
                {at<float>(q), at<float>(k), at<float>(v), at<int32_t>(offsets), at<float>(out), at<float>(statistics),
                 segments, heads, dim, scale,
                 Dropout{at<int64_t>(rng), probability, level, layer, kAttentionWeights, segment_base}},
                threads);
        },
        py::call_guard<py::gil_scoped_release>());
    m.def(
        "segment_attention_backward",
        [](Address q, Address k, Address v, Address offsets, Address out, Address statistics, Address grad_out,
           Address grad_q, Address grad_k, Address grad_v, int64_t segments, int64_t heads, int64_t dim, float scale,
           Address rng, float probability, uint32_t level, uint32_t layer, int64_t segment_base, int threads) {
            kernels.segment_attention_backward(
                {{at<float>(q), at<float>(k), at<float>(v), at<int32_t>(offsets), at<float>(out), at<float>(statistics),
                  segments, heads, dim, scale,
                  Dropout{at<int64_t>(rng), probability, level, layer, kAttentionWeights, segment_base}},
                 at<float>(grad_out),
                 at<float>(grad_q),
                 at<float>(grad_k),
                 at<float>(grad_v)},
                threads);
        },
        py::call_guard<py::gil_scoped_release>());

    m.def(
        "kmeans_assign",
        [](Address points, Address centroids, Address labels, Address distances, int64_t problems, int64_t count,
           int64_t clusters, int64_t width, int threads) {
            kernels.kmeans_assign({at<float>(points), at<float>(centroids), at<int32_t>(labels), at<float>(distances),
                                   problems, count, clusters, width},
                                  threads);
        },
        py::call_guard<py::gil_scoped_release>());
    m.def(
        "kmeans_init",
        [](Address points, Address seeds, Address rows, int64_t problems, int64_t count, int64_t clusters,
           int64_t width, int64_t restart, bool plus_plus, int threads) {
            kernels.kmeans_init({at<float>(points), at<int64_t>(seeds), at<int32_t>(rows), problems, count, clusters,
                                 width, restart, plus_plus},
                                threads);
        },
        py::call_guard<py::gil_scoped_release>());
    m.def(
        "kmeans",
        [](Address points, Address centroids, Address labels, Address rows, Address offsets, Address inertia,
           Address steps_done, int64_t problems, int64_t count, int64_t clusters, int64_t width, int64_t steps,
           double tolerance, int threads) {
            kernels.kmeans(
                {at<float>(points), at<float>(centroids), at<int32_t>(labels), at<int32_t>(rows), at<int32_t>(offsets),
                 at<double>(inertia), at<int32_t>(steps_done), problems, count, clusters, width, steps, tolerance},
                threads);
        },
        py::call_guard<py::gil_scoped_release>());
    m.def(
        "sort_by_cluster",
        [](Address labels, Address rows, Address offsets, int64_t problems, int64_t count, int64_t clusters,
           int threads) {
            kernels.sort_by_cluster(
                {at<int32_t>(labels), at<int32_t>(rows), at<int32_t>(offsets), problems, count, clusters}, threads);
        },
        py::call_guard<py::gil_scoped_release>());

    bind_segment_encoder(m);
    m.def("segment_encoder_workspace", [](const SegmentEncoder& p, bool backward, int threads) {
        return kernels.segment_encoder_workspace(p, backward, threads);
    });
    m.def(
        "segment_encoder",
        [](SegmentEncoder p, Address workspace, int threads) {
            p.workspace = at<float>(workspace);
            kernels.segment_encoder(p, threads);
        },
        py::call_guard<py::gil_scoped_release>());
    m.def(
        "segment_encoder_backward",
        [](SegmentEncoder p, Address workspace, Address grad_out, Address grad_parameters, Address grad_columns,
           int threads) {
            p.workspace = at<float>(workspace);
            kernels.segment_encoder_backward(
                {p, at<float>(grad_out), at<float>(grad_parameters), at<float>(grad_columns)}, threads);
        },
        py::call_guard<py::gil_scoped_release>());
}
