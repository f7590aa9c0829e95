// The CUDA kernels. Each runs on the given stream of the current device.
#pragma once

#include <cuda_runtime.h>

#include "cuda/kmeans_plan.h"
#include "cuda/segments.h"
#include "kernels.h"

namespace sopr::cuda {

int64_t launch_count();  // of all kernels so far
// This module has a CUDA runtime of its own, which must learn which device the caller's stream belongs to.
void set_device(int index);

// Scratch of kmeans; need not be initialised.
struct KMeansMemory {
    float* squared;    // (B, N), to the centroid of the label
    int64_t* sums;     // (B, K, D)
    int64_t* sizes;    // (B, K)
    float* centroids;  // (B, K, stride), scaled
    double* moved;     // (B, K)
};

// Scratch of kmeans_init; need not be initialised.
struct KMeansInitMemory {
    float* squared;    // (B, N)
    int64_t* weights;  // (B, ceil(N / kKMeansBin))
    int32_t* labels;   // (B, N)
    int32_t* order;    // (B, N), rows grouped by cluster and distance
    int32_t* anchors;  // (B, N), their clusters when they were grouped
    int32_t* ends;     // (B, K, kKMeansDistances), of groups
    void* states;      // (B, N) of 16 bytes, by position
};

void kmeans_init(const KMeansInit&, const KMeansInitMemory&, cudaStream_t stream);
KMeansShape shape_of_kmeans(int64_t problems, int64_t count, int64_t clusters, int64_t width);
void kmeans(const KMeans&, const KMeansMemory&, cudaStream_t stream);
void sort_by_cluster(const SortByCluster&, cudaStream_t stream);

void segment_mean(const SegmentMean&, cudaStream_t stream);
void segment_mean_backward(const SegmentMeanBackward&, cudaStream_t stream);
void segment_dropout(const SegmentDropout&, cudaStream_t stream);
void segment_attention(const SegmentAttention&, cudaStream_t stream);
void segment_attention_backward(const SegmentAttentionBackward&, cudaStream_t stream);

// The same for the given segments; ignores the offsets in the parameters.
void segment_mean(const SegmentMean&, const Segments&, cudaStream_t stream);
void segment_dropout(const SegmentDropout&, const Segments&, cudaStream_t stream);
void segment_attention(const SegmentAttention&, const Segments&, cudaStream_t stream);  // reads the order

// order (G) = the numbers of segments, long ones first: a long one that starts last keeps one block busy after all
// others.
void order_segments(const Segments&, int64_t segments, int32_t* order, cudaStream_t stream);

// Ignores `order` and `longest`, and `bf16` unless segment_encoder_uses_tensor_cores().
bool segment_encoder_uses_tensor_cores(const SegmentEncoder&);
int64_t segment_encoder_workspace(const SegmentEncoder&);
void segment_encoder(const SegmentEncoder&, cudaStream_t stream);

// On tensor cores only; their limit depends on the current device.
bool segment_encoder_backward_uses_tensor_cores(const SegmentEncoder&);
int64_t segment_encoder_backward_workspace(const SegmentEncoder&, bool columns_grad);
void segment_encoder_backward(const SegmentEncoderBackward&, cudaStream_t stream);

}  // namespace sopr::cuda
