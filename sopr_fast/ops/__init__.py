"""Torch operators over the compiled kernels, each with a plain-torch reference in `ops.reference`."""

from .kmeans import KMeans, kmeans, kmeans_assign, kmeans_plusplus, sort_by_cluster
from .segment_mean import segment_mean

__all__ = ["KMeans", "kmeans", "kmeans_assign", "kmeans_plusplus", "segment_mean", "sort_by_cluster"]
