// The kernels of one instruction-set level. With SOPR_LEVEL defined, declares the copies of that level.
#pragma once

#include "kernels.h"

namespace sopr {

struct Table {
    void (*segment_mean)(const SegmentMean&, int threads);
    void (*segment_mean_backward)(const SegmentMeanBackward&, int threads);
    void (*segment_dropout)(const SegmentDropout&, int threads);
    void (*segment_attention)(const SegmentAttention&, int threads);
    void (*segment_attention_backward)(const SegmentAttentionBackward&, int threads);
    void (*kmeans_init)(const KMeansInit&, int threads);
    void (*kmeans)(const KMeans&, int threads);
    void (*segment_encoder)(const SegmentEncoder&, int threads);
    void (*segment_encoder_backward)(const SegmentEncoderBackward&, int threads);
    void (*mlp)(const Mlp&, int threads);
    void (*mlp_backward)(const MlpBackward&, int threads);
    void (*mlp_step)(const MlpStep&, int threads);
    int64_t (*segment_encoder_workspace)(const SegmentEncoder&, bool backward, int threads);  // floats
    int64_t (*segment_encoder_tape)(const SegmentEncoder&);                                   // floats a policy
};

#ifdef SOPR_LEVEL
namespace SOPR_LEVEL {
void segment_mean(const SegmentMean&, int threads);
void segment_mean_backward(const SegmentMeanBackward&, int threads);
void segment_dropout(const SegmentDropout&, int threads);
void segment_attention(const SegmentAttention&, int threads);
void segment_attention_backward(const SegmentAttentionBackward&, int threads);
void kmeans_init(const KMeansInit&, int threads);
void kmeans(const KMeans&, int threads);
void sort_by_cluster(const SortByCluster&, int threads);
void segment_encoder(const SegmentEncoder&, int threads);
void segment_encoder_backward(const SegmentEncoderBackward&, int threads);
void mlp(const Mlp&, int threads);
void mlp_backward(const MlpBackward&, int threads);
void mlp_step(const MlpStep&, int threads);
int64_t segment_encoder_workspace(const SegmentEncoder&, bool backward, int threads);
int64_t segment_encoder_tape(const SegmentEncoder&);
}  // namespace SOPR_LEVEL
#endif

}  // namespace sopr
