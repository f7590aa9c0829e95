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

    const Binder<Run, int> bind(m);
    bind.kernel("segment_mean", kernels.segment_mean, kSegmentMean);
    bind.kernel("segment_mean_backward", kernels.segment_mean_backward, kSegmentMeanBackward);
    bind.kernel("segment_dropout", kernels.segment_dropout, kSegmentDropout);
    bind.kernel("segment_attention", kernels.segment_attention, kSegmentAttention);
    bind.kernel("segment_attention_backward", kernels.segment_attention_backward, kSegmentAttentionBackward);
    bind.kernel("kmeans_init", kernels.kmeans_init, kKMeansInit);
    bind.kernel("kmeans", kernels.kmeans, kKMeans);
    bind.kernel("segment_encoder", kernels.segment_encoder, kSegmentEncoder);
    bind.kernel("segment_encoder_backward", kernels.segment_encoder_backward, kSegmentEncoderBackward);
    bind.kernel("mlp", kernels.mlp, kMlp);
    bind.kernel("mlp_backward", kernels.mlp_backward, kMlpBackward);
    bind.kernel("mlp_step", kernels.mlp_step, kMlpStep);
    m.def("segment_encoder_tape",
          [](const py::args& fields) { return kernels.segment_encoder_tape(made_of<SegmentEncoder>(fields)); });
    m.def("segment_encoder_workspace", [](bool backward, int threads, const py::args& fields) {
        return kernels.segment_encoder_workspace(made_of<SegmentEncoder>(fields), backward, threads);
    });
}
