"""Nearest centroids of points."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .checks import check_finite, check_points, check_rows, check_tensor
from .library import call, define


def kmeans_assign(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Find the nearest centroid of every point, ties to the lowest index.

    Args:
        points: (B, N, D) float32, finite.
        centroids: (B, K, D) float32, finite, K at least 1.

    Returns:
        labels (B, N) int32 and squared distances (B, N) float32.

    Raises:
        TypeError: An argument is not float32.
        ValueError: An argument has another shape, or contains NaN or infinity.

    Equivalent to::

        squared, labels = (points[:, :, None] - centroids[:, None]).square().sum(-1).min(-1)
    """
    return _assign(check_points(points), check_tensor("centroids", centroids, "B, K, D").detach())


def _check_sizes(points: Tensor, centroids: Tensor) -> None:
    check_rows("points", points)
    if not points.shape[2] or not centroids.shape[1]:
        raise ValueError(
            f"points must have at least one column, got shape {tuple(points.shape)}, and there must be at least one "
            f"centroid, got shape {tuple(centroids.shape)}"
        )


def _check(points: Tensor, centroids: Tensor) -> None:
    check_finite("points", points, "row")
    check_finite("centroids", centroids, "centroid")


def _kernel(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    points, centroids = points.contiguous(), centroids.contiguous()
    labels, distances = _fake(points, centroids)
    problems, count, width = points.shape
    call(
        "kmeans_assign",
        points.device,
        points=points,
        centroids=centroids,
        labels=labels,
        distances=distances,
        problems=problems,
        count=count,
        clusters=centroids.shape[1],
        width=width,
    )
    return labels, distances


def _fake(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    return points.new_empty(points.shape[:2], dtype=torch.int32), points.new_empty(points.shape[:2])


_assign = define(
    "kmeans_assign(Tensor points, Tensor centroids) -> (Tensor, Tensor)",
    cpu=_kernel,
    cuda=_kernel,
    reference=reference.kmeans_assign,
    shapes={"points": "B, N, D", "centroids": "B, K, D"},
    check_sizes=_check_sizes,
    check=_check,
    fake=_fake,
)
