"""Batched k-means in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def lloyd(points: Tensor, centroids: Tensor, iterations: int, at_once: int = 20) -> tuple[Tensor, Tensor]:
    """Return centroids (B, K, D), and labels (B, N) from which they were averaged, after Lloyd's iterations.

    An empty cluster keeps its centroid. Problems are processed in groups of `at_once`, with all distances in memory.
    """
    groups = zip(points.split(at_once), centroids.split(at_once), strict=True)
    centroids, labels = zip(*(_lloyd(x, c, iterations) for x, c in groups), strict=True)
    return torch.cat(centroids), torch.cat(labels)


def _lloyd(x: Tensor, centroids: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    for _ in range(iterations):
        squared = torch.baddbmm(
            centroids.square().sum(-1)[:, None], x, centroids.mT, alpha=-2
        )  # without the squares of the points
        labels = squared.argmin(-1)
        sums = torch.zeros_like(centroids).scatter_add_(1, labels[..., None].expand_as(x), x)
        sizes = torch.zeros_like(centroids[..., 0]).scatter_add_(1, labels, torch.ones_like(x[..., 0]))[..., None]
        centroids = torch.where(sizes > 0, sums / sizes.clamp(min=1), centroids)
    return centroids, labels
