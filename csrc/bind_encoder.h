// What both modules show to Python alike: addresses, and the many parameters of segment_encoder.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "kernels.h"

namespace py = pybind11;

namespace sopr {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

inline void bind_segment_encoder(py::module_& m) {
    py::class_<SegmentEncoder>(m, "SegmentEncoder", py::module_local())
        .def(py::init([](Address states, Address columns, Address rows, Address offsets, Address order,
                         Address parameters, Address rng, Address out, int64_t policies, int64_t subsets,
                         int64_t states_count, int64_t state_width, int64_t column_width, int64_t subset_size,
                         int64_t clusters, int64_t width, int64_t layers, int64_t heads, int64_t feedforward,
                         int64_t longest, int64_t segment_base, float dropout, uint32_t level, bool project, bool pool,
                         bool bf16) {
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
                                       {at<int64_t>(rng), dropout, level, 0, 0, segment_base},
                                       project,
                                       pool,
                                       bf16};
             }),
             py::kw_only(), py::arg("states"), py::arg("columns"), py::arg("rows"), py::arg("offsets"),
             py::arg("order") = 0, py::arg("parameters"), py::arg("rng"), py::arg("out"), py::arg("policies"),
             py::arg("subsets"), py::arg("states_count"), py::arg("state_width"), py::arg("column_width"),
             py::arg("subset_size"), py::arg("clusters"), py::arg("width"), py::arg("layers"), py::arg("heads"),
             py::arg("feedforward"), py::arg("longest") = 0, py::arg("segment_base"), py::arg("dropout"),
             py::arg("level"), py::arg("project"), py::arg("pool"), py::arg("bf16"));
}

}  // namespace sopr
