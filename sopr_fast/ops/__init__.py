"""Torch operators over the compiled kernels, each with a plain-torch reference in `ops.reference`."""

from .kmeans import KMeans, kmeans
from .kmeans_assign import kmeans_assign
from .kmeans_init import kmeans_init
from .reference import encoder_shapes
from .segment_attention import segment_attention
from .segment_dropout import segment_dropout
from .segment_encoder import segment_encoder
from .segment_mean import segment_mean
from .sort_by_cluster import sort_by_cluster

__all__ = [
    "KMeans",
    "encoder_shapes",
    "kmeans",
    "kmeans_assign",
    "kmeans_init",
    "segment_attention",
    "segment_dropout",
    "segment_encoder",
    "segment_mean",
    "sort_by_cluster",
]
