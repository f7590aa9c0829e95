// The CUDA kernels for Python: addresses, sizes and the caller's stream in. Importing this module does not touch the
// driver.
#include "bind.h"
#include "cuda/kernels_cuda.h"

using namespace sopr;

PYBIND11_MODULE(_cuda, m) {
    m.attr("version") = SOPR_VERSION;
    m.attr("architectures") = SOPR_CUDA_ARCHITECTURES;
    m.attr("compiler") = SOPR_CUDA_COMPILER;

    def(m, "segment_mean", segment_mean_of, cuda::segment_mean);
    def(m, "segment_mean_backward", segment_mean_backward_of, cuda::segment_mean_backward);
    def(m, "segment_dropout", segment_dropout_of, cuda::segment_dropout);
    def(m, "segment_attention", segment_attention_of, cuda::segment_attention);
    def(m, "segment_attention_backward", segment_attention_backward_of, cuda::segment_attention_backward);
    def(m, "kmeans_assign", kmeans_assign_of, cuda::kmeans_assign);
    def(m, "sort_by_cluster", sort_by_cluster_of, cuda::sort_by_cluster);

    m.attr("kmeans_bin") = cuda::kKMeansBin;
    m.def(
        "kmeans_init",
        [](Address points, Address seeds, Address rows, int64_t problems, int64_t count, int64_t clusters,
           int64_t width, int64_t restart, bool plus_plus, Address squared, Address weights, Address stream) {
            cuda::kmeans_init({at<float>(points), at<int64_t>(seeds), at<int32_t>(rows), problems, count, clusters,
                               width, restart, plus_plus},
                              {at<float>(squared), at<int64_t>(weights)}, cudaStream_t(stream));
        },
        NoGil());
    m.def(
        "kmeans",
        [](Address points, Address centroids, Address labels, Address rows, Address offsets, Address inertia,
           Address steps_done, int64_t problems, int64_t count, int64_t clusters, int64_t width, int64_t steps,
           double tolerance, Address squared, Address sums, Address sizes, Address to_integer, Address stream) {
            cuda::kmeans(
                {at<float>(points), at<float>(centroids), at<int32_t>(labels), at<int32_t>(rows), at<int32_t>(offsets),
                 at<double>(inertia), at<int32_t>(steps_done), problems, count, clusters, width, steps, tolerance},
                {at<float>(squared), at<int64_t>(sums), at<int64_t>(sizes), at<float>(to_integer)},
                cudaStream_t(stream));
        },
        NoGil());

    bind_segment_encoder(m);
    m.def("segment_encoder_workspace", &cuda::segment_encoder_workspace);
    m.def(
        "segment_encoder",
        [](SegmentEncoder p, Address workspace, Address stream) {
            p.workspace = at<float>(workspace);
            cuda::segment_encoder(p, cudaStream_t(stream));
        },
        NoGil());
}
