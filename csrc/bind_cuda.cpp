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

KMeansInitOnDevice kmeans_init_on_device(Address points, Address seeds, Address rows, int64_t problems, int64_t count,
                                         int64_t clusters, int64_t width, int64_t restart, bool plus_plus,
                                         Address squared, Address weights, Address labels, Address radii, Address order,
                                         Address anchors, Address ends) {
    return {kmeans_init_of(points, seeds, rows, problems, count, clusters, width, restart, plus_plus),
            {at<float>(squared), at<int64_t>(weights), at<int32_t>(labels), at<float>(radii), at<int32_t>(order),
             at<int32_t>(anchors), at<int32_t>(ends)}};
}

struct KMeansOnDevice {
    KMeans problem;
    cuda::KMeansMemory memory;
};

KMeansOnDevice kmeans_on_device(Address points, Address centroids, Address labels, Address rows, Address offsets,
                                Address inertia, Address steps_done, int64_t problems, int64_t count, int64_t clusters,
                                int64_t width, int64_t steps, double tolerance, Address squared, Address sums,
                                Address sizes, Address scaled, Address moved, Address order, Address anchors,
                                Address ends) {
    return {kmeans_of(points, centroids, labels, rows, offsets, inertia, steps_done, problems, count, clusters, width,
                      steps, tolerance),
            {at<float>(squared), at<int64_t>(sums), at<int64_t>(sizes), at<float>(scaled), at<double>(moved),
             at<int32_t>(order), at<int32_t>(anchors), at<int32_t>(ends)}};
}

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
            const cuda::KMeansPlan plan =
                cuda::plan_kmeans({block_clusters, processors, shared_bytes, 512},
                                  {problems, count, k, width, cuda::kmeans_bytes(width), true});
            return py::make_tuple(plan.blocks, plan.holds_centroids, plan.holds_points, plan.shared_bytes);
        },
        py::arg("block_clusters"), py::arg("processors"), py::arg("shared_bytes"), py::arg("problems"),
        py::arg("count"), py::arg("k"), py::arg("width"),
        "Blocks of a problem of kmeans, whether they hold centroids and points, and their shared memory.");
    m.def("kmeans_stride", &cuda::kmeans_stride, py::arg("width"), "Floats of a row of centroids in scratch buffers.");

    const Binder<Run> bind(m, "stream");
    bind.kernel<SegmentMean>("segment_mean", cuda::segment_mean, segment_mean_of, kSegmentMean);
    bind.kernel("segment_mean_backward", cuda::segment_mean_backward, segment_mean_backward_of, kSegmentMeanBackward);
    bind.kernel<SegmentDropout>("segment_dropout", cuda::segment_dropout, segment_dropout_of, kSegmentDropout);
    bind.kernel<SegmentAttention>("segment_attention", cuda::segment_attention, segment_attention_of,
                                  kSegmentAttention);
    bind.kernel("segment_attention_backward", cuda::segment_attention_backward, segment_attention_backward_of,
                kSegmentAttentionBackward);
    bind.kernel("kmeans_assign", cuda::kmeans_assign, kmeans_assign_of, kKMeansAssign);
    bind.kernel("sort_by_cluster", cuda::sort_by_cluster, sort_by_cluster_of, kSortByCluster);
    bind.kernel<KMeansInitOnDevice, cudaStream_t>(
        "kmeans_init",
        [](const KMeansInitOnDevice& p, cudaStream_t stream) { kmeans_init(p.problem, p.memory, stream); },
        kmeans_init_on_device,
        {"points", "seeds", "rows", "problems", "count", "clusters", "width", "restart", "plus_plus", "squared",
         "weights", "labels", "radii", "order", "anchors", "ends"});
    bind.kernel<KMeansOnDevice, cudaStream_t>(
        "kmeans", [](const KMeansOnDevice& p, cudaStream_t stream) { kmeans(p.problem, p.memory, stream); },
        kmeans_on_device, {"points",   "centroids", "labels",   "rows",  "offsets", "inertia",   "steps_done",
                           "problems", "count",     "clusters", "width", "steps",   "tolerance", "squared",
                           "sums",     "sizes",     "scaled",   "moved", "order",   "anchors",   "ends"});

    bind_segment_encoder(m);
    m.def("launches", &cuda::launch_count, "Kernels launched so far.");
    m.def("set_device", &cuda::set_device, py::arg("index"), "Choose the device of this thread's later calls.");
    m.def("segment_encoder_uses_tensor_cores", &cuda::segment_encoder_uses_tensor_cores, py::arg("problem"));
    m.def("segment_encoder_workspace", &cuda::segment_encoder_workspace, py::arg("problem"));
    m.def(
        "segment_encoder",
        [](SegmentEncoder problem, Address workspace, Address stream) {
            problem.workspace = at<float>(workspace);
            Run()([&] { cuda::segment_encoder(problem, cudaStream_t(stream)); });
        },
        py::arg("problem"), py::arg("workspace"), py::arg("stream"));
    m.attr("keywords")["segment_encoder"] = py::make_tuple("problem", "workspace");

    m.def("segment_encoder_backward_uses_tensor_cores", &cuda::segment_encoder_backward_uses_tensor_cores,
          py::arg("problem"));
    m.def("segment_encoder_backward_workspace", &cuda::segment_encoder_backward_workspace, py::arg("problem"),
          py::arg("columns_grad"));
    m.def(
        "segment_encoder_backward",
        [](SegmentEncoder problem, Address workspace, Address grad_out, Address grad_parameters, Address grad_columns,
           Address stream) {
            problem.workspace = at<float>(workspace);
            const SegmentEncoderBackward backward = {problem, at<float>(grad_out), at<float>(grad_parameters),
                                                     at<float>(grad_columns)};
            Run()([&] { cuda::segment_encoder_backward(backward, cudaStream_t(stream)); });
        },
        py::arg("problem"), py::arg("workspace"), py::arg("grad_out"), py::arg("grad_parameters"),
        py::arg("grad_columns"), py::arg("stream"));
    m.attr("keywords")["segment_encoder_backward"] =
        py::make_tuple("problem", "workspace", "grad_out", "grad_parameters", "grad_columns");
}
