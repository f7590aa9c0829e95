// The CPU kernels for Python: addresses and sizes in, the GIL released while a kernel runs.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdlib>

#include "cpu/dispatch.h"

namespace py = pybind11;
using namespace sopr;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace

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
}
