// The CPU kernels for Python: addresses and sizes in, the GIL released while a kernel runs.
#include <pybind11/stl.h>

#include <cstdlib>

#include "bind.h"
#include "cpu/dispatch.h"

using namespace sopr;

PYBIND11_MODULE(_cpu, m) {
    static const Level level = choose_level(std::getenv("SOPR_FAST_ISA"));
    static const Table& kernels = *level.table;

    m.attr("version") = SOPR_VERSION;
    m.attr("isa") = level.name;
    std::vector<std::string> names;
    for (const Level& supported : supported_levels()) names.emplace_back(supported.name);
    m.attr("supported_isas") = names;

    def(m, "segment_mean", segment_mean_of, kernels.segment_mean);
    def(m, "segment_mean_backward", segment_mean_backward_of, kernels.segment_mean_backward);
    def(m, "segment_dropout", segment_dropout_of, kernels.segment_dropout);
    def(m, "segment_attention", segment_attention_of, kernels.segment_attention);
    def(m, "segment_attention_backward", segment_attention_backward_of, kernels.segment_attention_backward);
    def(m, "kmeans_assign", kmeans_assign_of, kernels.kmeans_assign);
    def(m, "sort_by_cluster", sort_by_cluster_of, kernels.sort_by_cluster);

    m.def(
        "kmeans_init",
        [](Address points, Address seeds, Address rows, int64_t problems, int64_t count, int64_t clusters,
           int64_t width, int64_t restart, bool plus_plus, int threads) {
            kernels.kmeans_init({at<float>(points), at<int64_t>(seeds), at<int32_t>(rows), problems, count, clusters,
                                 width, restart, plus_plus},
                                threads);
        },
        NoGil());
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
        NoGil());

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
        NoGil());
    m.def(
        "segment_encoder_backward",
        [](SegmentEncoder p, Address workspace, Address grad_out, Address grad_parameters, Address grad_columns,
           int threads) {
            p.workspace = at<float>(workspace);
            kernels.segment_encoder_backward(
                {p, at<float>(grad_out), at<float>(grad_parameters), at<float>(grad_columns)}, threads);
        },
        NoGil());
}
