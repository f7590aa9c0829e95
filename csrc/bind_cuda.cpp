// The CUDA kernels for Python: addresses, sizes, the device and the caller's stream in. Importing this module does
// not touch the driver.
#include <pybind11/pybind11.h>

#include "cuda/kernels_cuda.h"

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
}
