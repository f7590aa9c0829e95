// The CUDA kernels for Python: addresses, sizes and the caller's stream in. Importing this module does not touch the
// driver.
#include "bind_encoder.h"
#include "cuda/kernels_cuda.h"
#include "philox.h"

using namespace sopr;

namespace {

cudaStream_t stream_at(Address stream) { return reinterpret_cast<cudaStream_t>(stream); }

}  // namespace

PYBIND11_MODULE(_cuda, m) {
    m.attr("version") = SOPR_VERSION;
    m.attr("architectures") = SOPR_CUDA_ARCHITECTURES;
    m.attr("compiler") = SOPR_CUDA_COMPILER;

    m.def("segment_mean", [](Address x, Address offsets, Address out, int64_t segments, int64_t width, Address stream) {
        cuda::segment_mean({at<float>(x), at<int32_t>(offsets), at<float>(out), segments, width}, stream_at(stream));
    });
    m.def("segment_mean_backward",
          [](Address grad_out, Address offsets, Address grad_x, int64_t segments, int64_t width, Address stream) {
              cuda::segment_mean_backward(
                  {at<float>(grad_out), at<int32_t>(offsets), at<float>(grad_x), segments, width}, stream_at(stream));
          });

    m.def("segment_dropout",
          [](Address x, Address offsets, Address out, int64_t segments, int64_t width, Address rng, float probability,
             uint32_t level, uint32_t layer, uint32_t site, int64_t segment_base, Address stream) {
              cuda::segment_dropout({at<float>(x), at<int32_t>(offsets), at<float>(out), segments, width,
                                     Dropout{at<int64_t>(rng), probability, level, layer, site, segment_base}},
                                    stream_at(stream));
          });
    m.def("segment_attention", [](Address q, Address k, Address v, Address offsets, Address out, Address statistics,
                                  int64_t segments, int64_t heads, int64_t dim, float scale, Address rng,
                                  float probability, uint32_t level, uint32_t layer, int64_t segment_base,
                                  Address stream) {
        cuda::segment_attention({at<float>(q), at<float>(k), at<float>(v), at<int32_t>(offsets), at<float>(out),
                                 at<float>(statistics), segments, heads, dim, scale,
                                 Dropout{at<int64_t>(rng), probability, level, layer, kAttentionWeights, segment_base}},
                                stream_at(stream));
    });
    m.def("segment_attention_backward",
          [](Address q, Address k, Address v, Address offsets, Address out, Address statistics, Address grad_out,
             Address grad_q, Address grad_k, Address grad_v, int64_t segments, int64_t heads, int64_t dim, float scale,
             Address rng, float probability, uint32_t level, uint32_t layer, int64_t segment_base, Address stream) {
              cuda::segment_attention_backward(
                  {{at<float>(q), at<float>(k), at<float>(v), at<int32_t>(offsets), at<float>(out),
                    at<float>(statistics), segments, heads, dim, scale,
                    Dropout{at<int64_t>(rng), probability, level, layer, kAttentionWeights, segment_base}},
                   at<float>(grad_out),
                   at<float>(grad_q),
                   at<float>(grad_k),
                   at<float>(grad_v)},
                  stream_at(stream));
          });

    m.attr("kmeans_bin") = cuda::kKMeansBin;
    m.def("kmeans_assign", [](Address points, Address centroids, Address labels, Address distances, int64_t problems,
                              int64_t count, int64_t clusters, int64_t width, Address stream) {
        cuda::kmeans_assign({at<float>(points), at<float>(centroids), at<int32_t>(labels), at<float>(distances),
                             problems, count, clusters, width},
                            stream_at(stream));
    });
    m.def("kmeans_init",
          [](Address points, Address seeds, Address rows, int64_t problems, int64_t count, int64_t clusters,
             int64_t width, int64_t restart, bool plus_plus, Address squared, Address weights, Address stream) {
              cuda::kmeans_init({at<float>(points), at<int64_t>(seeds), at<int32_t>(rows), problems, count, clusters,
                                 width, restart, plus_plus},
                                {at<float>(squared), at<int64_t>(weights)}, stream_at(stream));
          });
    m.def("kmeans", [](Address points, Address centroids, Address labels, Address rows, Address offsets,
                       Address inertia, Address steps_done, int64_t problems, int64_t count, int64_t clusters,
                       int64_t width, int64_t steps, double tolerance, Address squared, Address sums, Address sizes,
                       Address to_integer, Address stream) {
        cuda::kmeans(
            {at<float>(points), at<float>(centroids), at<int32_t>(labels), at<int32_t>(rows), at<int32_t>(offsets),
             at<double>(inertia), at<int32_t>(steps_done), problems, count, clusters, width, steps, tolerance},
            {at<float>(squared), at<int64_t>(sums), at<int64_t>(sizes), at<float>(to_integer)}, stream_at(stream));
    });
    m.def("sort_by_cluster", [](Address labels, Address rows, Address offsets, int64_t problems, int64_t count,
                                int64_t clusters, Address stream) {
        cuda::sort_by_cluster({at<int32_t>(labels), at<int32_t>(rows), at<int32_t>(offsets), problems, count, clusters},
                              stream_at(stream));
    });

    bind_segment_encoder(m);
    m.def("segment_encoder_workspace", &cuda::segment_encoder_workspace);
    m.def("segment_encoder", [](SegmentEncoder p, Address workspace, Address stream) {
        p.workspace = at<float>(workspace);
        cuda::segment_encoder(p, stream_at(stream));
    });
}
