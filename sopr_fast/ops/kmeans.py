"""k-means for a batch of independent problems, and its initial centroids."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import native
from .library import Fields, define, run_kernel
from .tensor_checks import check_finite, check_problems, check_tensor, shape_of


class KMeans(NamedTuple):
    """Result of `kmeans` for B problems of N points in D dimensions and K clusters.

    Attributes:
        centroids: (B, K, D) float32.
        labels: (B, N) int32, the nearest centroid of every point.
        sizes: (B, K) int32, points per cluster.
        inertia: (B,) float64, sum of squared distances to the nearest centroid.
        iterations: (B,) int32, Lloyd iterations done.
        rows: (B, N) int32, sorted by cluster: those of cluster k are ``rows[b, offsets[b, k]:offsets[b, k + 1]]``,
            ascending.
        offsets: (B, K + 1) int32.
    """

    centroids: Tensor
    labels: Tensor
    sizes: Tensor
    inertia: Tensor
    iterations: Tensor
    rows: Tensor
    offsets: Tensor


def kmeans(
    points: Tensor,
    k: int,
    *,
    init: Tensor | None = None,
    iterations: int = 300,
    tolerance: float = 1e-4,
    seeds: Tensor | None = None,
) -> KMeans:
    """Cluster every problem of a batch with Lloyd's algorithm (paper section 3.1).

    A problem stops when no label changes, when its centroids move by at most `tolerance`, or after `iterations`. An
    empty cluster moves to the farthest point; clusters stay empty, with a finite centroid, only if there are fewer
    than `k` distinct points. The result of a problem depends only on its points and seed, not on the batch or the
    number of threads. Nothing is differentiable.

    Args:
        points: (B, N, D) float32, finite.
        k: Clusters per problem, at most N.
        init: Initial centroids (B, k, D) float32; None for those of `kmeans_init`.
        iterations: Maximum number of Lloyd iterations. 0 assigns points to the initial centroids.
        tolerance: Sum of squared moves relative to the mean variance of the columns, as in scikit-learn. 0 stops only
            at a fixed point.
        seeds: (B,) int64; by default 0, 1, …

    Returns:
        A `KMeans`.

    Equivalent to::

        centroids = points.gather(1, kmeans_init(points, k, seeds)[..., None].expand(-1, -1, D).long())
        for _ in range(iterations):
            labels = (points[:, :, None] - centroids[:, None]).square().sum(-1).argmin(-1)
            for x, l, c in zip(points, labels, centroids):
                c[:] = torch.stack([x[l == cluster].mean(0) for cluster in range(k)])
    """
    points = check_tensor("points", points, "B, N, D").detach()
    if not (iterations >= 0 and tolerance >= 0):  # true of NaN
        raise ValueError(f"iterations and tolerance must be at least 0, got {iterations} and {tolerance}")
    if init is None:
        rows = kmeans_init(points, k, seeds).long()
        start = points.gather(1, rows.unsqueeze(2).expand(-1, -1, points.shape[2]))
    else:
        start = check_tensor("init", init, f"{len(points)}, {k}, {points.shape[2]}").detach()
    centroids, labels, inertia, steps, rows, offsets = _lloyd(points, start, iterations, tolerance)
    return KMeans(centroids, labels, offsets.diff(dim=1), inertia, steps, rows, offsets)


def kmeans_init(points: Tensor, k: int, seeds: Tensor | None = None) -> Tensor:
    """Choose k rows of every problem as initial centroids.

    Greedy k-means++ tries 2 + ⌊ln k⌋ candidates per round (Arthur & Vassilvitskii 2007). When distinct points run
    out, it repeats the first row.

    Args:
        points: (B, N, D) float32, finite.
        k: Rows per problem, 1 to N.
        seeds: (B,) int64; by default 0, 1, …

    Returns:
        (B, k) int32.

    Equivalent to::

        [sklearn.cluster.kmeans_plusplus(x.numpy(), k)[1] for x in points]  # with other random draws
    """
    points = check_tensor("points", points, "B, N, D").detach()
    if seeds is None:
        seeds = torch.arange(len(points), device=points.device)
    return _init(points, k, seeds)


# Shapes and dtypes of what a GPU takes besides arguments and results.
_SCRATCH = {
    "squared": ("problems, count", torch.float32),
    "order": ("problems, count", torch.int32),
    "anchors": ("problems, count", torch.int32),
    "ends": ("problems, clusters, distances", torch.int32),
    "sums": ("problems, clusters, width", torch.int64),
    "sizes": ("problems, clusters", torch.int64),
    "scaled": ("problems, clusters, stride", torch.float32),
    "moved": ("problems, clusters", torch.float64),
    "weights": ("problems, bins", torch.int64),
    "labels": ("problems, count", torch.int32),
    "states": ("problems, count, 4", torch.float32),
}


def _run(kernel: str, fields: Fields) -> None:
    points, module = fields["points"], native._cuda
    if native.on_gpu(points.device):
        sizes = {"distances": module.kmeans_distances, "stride": module.kmeans_stride(fields["width"])}
        sizes |= fields | {"bins": -(-fields["count"] // module.kmeans_bin)}
        for name in module.keywords[kernel].split(", "):
            if name not in fields:
                shape, dtype = _SCRATCH[name]
                fields[name] = points.new_empty(shape_of(shape, sizes), dtype=dtype)
    run_kernel(kernel, fields)


def _run_lloyd(kernel: str, fields: Fields) -> None:
    fields["centroids"].copy_(fields["start"])
    _run(kernel, fields)


def _check_finite(fields: Fields) -> None:
    check_finite("points", fields["points"], "row")
    if "start" in fields:
        check_finite("init", fields["start"], "centroid")


_lloyd = define(
    "kmeans(Tensor points, Tensor start, int steps, float tolerance)"
    " -> (Tensor centroids, Tensor labels, Tensor inertia, Tensor steps_done, Tensor rows, Tensor offsets)",
    {
        "points": "problems, count, width",
        "start": "problems, clusters, width",
        "centroids": "problems, clusters, width",
        "labels": "problems, count",
        "inertia": "problems",
        "steps_done": "problems",
        "rows": "problems, count",
        "offsets": "problems, clusters + 1",
    },
    check_sizes=check_problems,
    check=_check_finite,
    run=_run_lloyd,
)

_init = define(
    "kmeans_init(Tensor points, SymInt clusters, Tensor seeds) -> Tensor rows",
    {"points": "problems, count, width", "seeds": "problems", "rows": "problems, clusters"},
    check_sizes=check_problems,
    check=_check_finite,
    run=_run,
)
