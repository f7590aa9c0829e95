// The CPU kernels for Python. The GIL is released while a kernel runs.
#include <pybind11/stl.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/syscall.h>
#else
#include <pthread.h>
#endif

#include <cstdlib>
#include <exception>

#include "bind.h"
#include "cpu/dispatch.h"
#include "cpu/pool.h"

using namespace sopr;

namespace {

bool on_main_thread() {
#if defined(__linux__)
    return syscall(SYS_gettid) == getpid();
#else
    return pthread_main_np() != 0;
#endif
}

// Let Python handle pending signals, which it does on its main thread only; true if a handler raised.
bool signal_raised() {
    if (!on_main_thread()) return false;
    const PyGILState_STATE gil = PyGILState_Ensure();
    const bool raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(gil);
    return raised;
}

// Runs a kernel without the GIL; a signal handler that raises cancels it.
struct Run {
    template <class Kernel>
    void operator()(const Kernel& kernel) const {
        KernelCall call(signal_raised);
        std::exception_ptr error;
        PyThreadState* const state = PyEval_SaveThread();
        block_if_shut_down();
        try {
            kernel();
        } catch (...) {
            error = std::current_exception();
        }
        block_if_shut_down();
        PyEval_RestoreThread(state);
        if (call.cancelled()) {
            if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
            throw py::error_already_set();
        }
        if (error) std::rethrow_exception(error);
    }
};

}  // namespace

PYBIND11_MODULE(_cpu, m) {
    static const Level level = choose_level(std::getenv("SOPR_FAST_ISA"));
    static const Table& kernels = *level.table;

    m.attr("version") = SOPR_VERSION;
    m.attr("isa") = level.name;
    std::vector<std::string> names;
    for (const Level& supported : supported_levels()) names.emplace_back(supported.name);
    m.attr("supported_isas") = names;
    m.def("shut_down", shut_down);
    m.def("blocked_threads", blocked_threads);

    const Binder<Run> bind(m, "threads");
    bind.kernel("segment_mean", kernels.segment_mean, segment_mean_of, kSegmentMean);
    bind.kernel("segment_mean_backward", kernels.segment_mean_backward, segment_mean_backward_of, kSegmentMeanBackward);
    bind.kernel("segment_dropout", kernels.segment_dropout, segment_dropout_of, kSegmentDropout);
    bind.kernel("segment_attention", kernels.segment_attention, segment_attention_of, kSegmentAttention);
    bind.kernel("segment_attention_backward", kernels.segment_attention_backward, segment_attention_backward_of,
                kSegmentAttentionBackward);
    bind.kernel("kmeans_assign", kernels.kmeans_assign, kmeans_assign_of, kKMeansAssign);
    bind.kernel("kmeans_init", kernels.kmeans_init, kmeans_init_of, kKMeansInit);
    bind.kernel("kmeans", kernels.kmeans, kmeans_of, kKMeans);
    bind.kernel("sort_by_cluster", kernels.sort_by_cluster, sort_by_cluster_of, kSortByCluster);

    bind_segment_encoder(m);
    m.def(
        "segment_encoder_workspace",
        [](const SegmentEncoder& problem, bool backward, int threads) {
            return kernels.segment_encoder_workspace(problem, backward, threads);
        },
        py::arg("problem"), py::arg("backward"), py::arg("threads"));
    m.def(
        "segment_encoder_tape", [](const SegmentEncoder& problem) { return kernels.segment_encoder_tape(problem); },
        py::arg("problem"));
    m.def(
        "segment_encoder",
        [](SegmentEncoder problem, Address workspace, int threads) {
            problem.workspace = at<float>(workspace);
            Run()([&] { kernels.segment_encoder(problem, threads); });
        },
        py::arg("problem"), py::arg("workspace"), py::arg("threads"));
    m.def(
        "segment_encoder_backward",
        [](SegmentEncoder problem, Address workspace, Address grad_out, Address grad_parameters, Address grad_columns,
           int threads) {
            problem.workspace = at<float>(workspace);
            const SegmentEncoderBackward backward = {problem, at<float>(grad_out), at<float>(grad_parameters),
                                                     at<float>(grad_columns)};
            Run()([&] { kernels.segment_encoder_backward(backward, threads); });
        },
        py::arg("problem"), py::arg("workspace"), py::arg("grad_out"), py::arg("grad_parameters"),
        py::arg("grad_columns"), py::arg("threads"));
    m.attr("keywords")["segment_encoder"] = py::make_tuple("problem", "workspace");
    m.attr("keywords")["segment_encoder_backward"] =
        py::make_tuple("problem", "workspace", "grad_out", "grad_parameters", "grad_columns");
}
