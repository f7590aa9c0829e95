// The CUDA kernels for Python, on the caller's stream. Importing this module does not touch the driver.
#include "bind.h"
#include "cuda/kernels_cuda.h"

using namespace sopr;

namespace {

struct Run {
    template <class Kernel>
    void operator()(const Kernel& kernel) const {
        const py::gil_scoped_release release;
        kernel();
    }
};

struct KMeansInitOnDevice {
    KMeansInit problem;
    cuda::KMeansInitMemory memory;
};

struct KMeansOnDevice {
    KMeans problem;
    cuda::KMeansMemory memory;
};

}  // namespace

PYBIND11_MODULE(_cuda, m) {
    m.attr("version") = SOPR_VERSION;
    m.attr("architectures") = SOPR_CUDA_ARCHITECTURES;
    m.attr("compiler") = SOPR_CUDA_COMPILER;
    m.attr("kmeans_bin") = cuda::kKMeansBin;
    m.attr("kmeans_distances") = cuda::kKMeansDistances;
    m.def(
        "kmeans_plan",
        [](bool block_clusters, int64_t processors, int64_t shared_bytes, int64_t problems, int64_t count, int64_t k,
           int64_t width) {
            const cuda::KMeansPlan plan = cuda::plan_kmeans({block_clusters, processors, shared_bytes, 512},
                                                            cuda::shape_of_kmeans(problems, count, k, width));
            return py::make_tuple(plan.blocks, plan.parts * cuda::kPart, plan.holds_points, plan.shared_bytes);
        },
        py::arg("block_clusters"), py::arg("processors"), py::arg("shared_bytes"), py::arg("problems"),
        py::arg("count"), py::arg("k"), py::arg("width"),
        "Blocks of a problem of kmeans, how many centroids they hold, whether points, and their shared memory.");
    m.def("kmeans_stride", &cuda::kmeans_stride, py::arg("width"), "Floats of a row of centroids in scratch buffers.");

    m.def("launches", &cuda::launch_count, "Kernels launched so far.");
    m.def("set_device", &cuda::set_device, py::arg("index"), "Choose the device of this thread's later calls.");

    const Binder<Run, cudaStream_t> bind(m);
    bind.kernel<SegmentMean>("segment_mean", cuda::segment_mean, kSegmentMean);
    bind.kernel("segment_mean_backward", cuda::segment_mean_backward, kSegmentMeanBackward);
    bind.kernel<SegmentDropout>("segment_dropout", cuda::segment_dropout, kSegmentDropout);
    bind.kernel<SegmentAttention>("segment_attention", cuda::segment_attention, kSegmentAttention);
    bind.kernel("segment_attention_backward", cuda::segment_attention_backward, kSegmentAttentionBackward);
    bind.kernel<KMeansInitOnDevice>(
        "kmeans_init", [](const auto& p, cudaStream_t stream) { kmeans_init(p.problem, p.memory, stream); },
        kKMeansInit + ", squared, weights, labels, order, anchors, ends, states");
    bind.kernel<KMeansOnDevice>(
        "kmeans", [](const auto& p, cudaStream_t stream) { kmeans(p.problem, p.memory, stream); },
        kKMeans + ", squared, sums, sizes, scaled, moved");
    bind.kernel("segment_encoder", cuda::segment_encoder, kSegmentEncoder);
    bind.kernel("segment_encoder_backward", cuda::segment_encoder_backward, kSegmentEncoderBackward);
    m.def("segment_encoder_uses_tensor_cores", [](const py::args& fields) {
        return cuda::segment_encoder_uses_tensor_cores(made_of<SegmentEncoder>(fields));
    });
    m.def("segment_encoder_workspace",
          [](const py::args& fields) { return cuda::segment_encoder_workspace(made_of<SegmentEncoder>(fields)); });
    m.def("segment_encoder_backward_uses_tensor_cores", [](const py::args& fields) {
        return cuda::segment_encoder_backward_uses_tensor_cores(made_of<SegmentEncoder>(fields));
    });
    m.def("segment_encoder_backward_workspace", [](bool columns_grad, const py::args& fields) {
        return cuda::segment_encoder_backward_workspace(made_of<SegmentEncoder>(fields), columns_grad);
    });
}
