// The CUDA kernels for Python: addresses, sizes, the device and the caller's stream in. Importing this module does
// not touch the driver.
#include <pybind11/pybind11.h>

#include "cuda/kernels_cuda.h"
#include "philox.h"

namespace py = pybind11;
using namespace sopr;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

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
    m.def("segment_attention", [](Address q, Address k, Address v, Address offsets, Address out, Address log_sum,
                                  int64_t segments, int64_t heads, int64_t dim, float scale, Address rng,
                                  float probability, uint32_t level, uint32_t layer, int64_t segment_base,
                                  Address stream) {
        cuda::segment_attention({at<float>(q), at<float>(k), at<float>(v), at<int32_t>(offsets), at<float>(out),
                                 at<float>(log_sum), segments, heads, dim, scale,
                                 Dropout{at<int64_t>(rng), probability, level, layer, kAttentionWeights, segment_base}},
                                stream_at(stream));
    });
    m.def("segment_attention_backward",
          [](Address q, Address k, Address v, Address offsets, Address out, Address log_sum, Address grad_out,
             Address grad_q, Address grad_k, Address grad_v, int64_t segments, int64_t heads, int64_t dim, float scale,
             Address rng, float probability, uint32_t level, uint32_t layer, int64_t segment_base, Address stream) {
              cuda::segment_attention_backward(
                  {{at<float>(q), at<float>(k), at<float>(v), at<int32_t>(offsets), at<float>(out), at<float>(log_sum),
                    segments, heads, dim, scale,
                    Dropout{at<int64_t>(rng), probability, level, layer, kAttentionWeights, segment_base}},
                   at<float>(grad_out),
                   at<float>(grad_q),
                   at<float>(grad_k),
                   at<float>(grad_v)},
                  stream_at(stream));
          });
}
