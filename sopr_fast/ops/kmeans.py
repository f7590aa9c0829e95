"""k-means for a batch of independent problems, and its initial centroids."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .. import native
from .library import Fields, define, run_kernel
from .tensor_checks import check_finite, check_problems, check_seeds, check_tensor, shape_of


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
    init: Literal["k-means++", "random"] | Tensor = "k-means++",
    iterations: int = 300,
    tolerance: float = 1e-4,
    restarts: int = 1,
    seeds: Tensor | int = 0,
) -> KMeans:
    """Cluster every problem of a batch with Lloyd's algorithm (paper section 3.1).

    A problem stops when no label changes, when its centroids move by at most `tolerance`, or after `iterations`. An
    empty cluster moves to the farthest point; clusters stay empty, with a finite centroid, only if there are fewer
    than `k` distinct points. The result of a problem depends only on its points and seed, not on the batch or the
    number of threads. Nothing is differentiable.

    Args:
        points: (B, N, D) float32, finite.
        k: Clusters per problem, at most N.
        init: ``"k-means++"`` or ``"random"`` (see `kmeans_init`), or initial centroids (B, k, D) float32.
        iterations: Maximum number of Lloyd iterations. 0 assigns points to the initial centroids.
        tolerance: Sum of squared moves relative to the mean variance of the columns, as in scikit-learn. 0 stops only
            at a fixed point.
        restarts: Independent starts, of which the one with the least inertia is kept; 1 with initial centroids.
        seeds: (B,) int64, or an integer s for s, s + 1, …

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
    if not (iterations >= 0 and tolerance >= 0 and restarts >= 1):  # true of NaN
        raise ValueError(
            "iterations and tolerance must be at least 0 and restarts at least 1, "
            f"got {iterations}, {tolerance} and {restarts}"
        )
    if isinstance(init, Tensor):
        if restarts != 1:
            raise ValueError(f"restarts must be 1 if init is a tensor, got {restarts}")
        start = check_tensor("init", init, f"{len(points)}, {k}, {points.shape[2]}").detach()
        return _result(_lloyd(points, start, iterations, tolerance))
    if not isinstance(init, str) or init not in ("k-means++", "random"):
        shown = repr(init) if isinstance(init, str) else type(init).__name__
        raise ValueError(f"init must be 'k-means++', 'random' or a tensor of centroids, got {shown}")

    seeds = check_seeds(seeds, points)
    best: tuple[Tensor, ...] = ()
    for restart in range(restarts):
        rows = kmeans_init(points, k, seeds, method=init, restart=restart).long()
        start = points.gather(1, rows.unsqueeze(2).expand(-1, -1, points.shape[2]))
        new = _lloyd(points, start, iterations, tolerance)
        if best:
            is_better = new[2] < best[2]  # less inertia
            places = [is_better.view(-1, *[1] * (part.dim() - 1)) for part in new]
            new = tuple(torch.where(*parts) for parts in zip(places, new, best, strict=True))
        best = new
    return _result(best)


def kmeans_init(
    points: Tensor,
    k: int,
    seeds: Tensor | int = 0,
    *,
    method: Literal["k-means++", "random"] = "k-means++",
    restart: int = 0,
) -> Tensor:
    """Choose k rows of every problem as initial centroids.

    Greedy k-means++ tries 2 + ⌊ln k⌋ candidates per round (Arthur & Vassilvitskii 2007). When distinct points run
    out, it repeats the first row.

    Args:
        points: (B, N, D) float32, finite.
        k: Rows per problem, 1 to N.
        seeds: (B,) int64, or an integer s for s, s + 1, …
        method: ``"k-means++"``, or ``"random"`` for distinct random rows.
        restart: Number of the restart, below 2^32; each draws other rows.

    Returns:
        (B, k) int32.

    Equivalent to::

        [sklearn.cluster.kmeans_plusplus(x.numpy(), k)[1] for x in points]  # with other random draws
    """
    points = check_tensor("points", points, "B, N, D").detach()
    if not 0 <= restart < 2**32:
        raise ValueError(f"restart must be between 0 and 2^32 - 1, got {restart}")
    if method not in ("k-means++", "random"):
        raise ValueError(f"method must be 'k-means++' or 'random', got {method!r}")
    return _init(points, k, check_seeds(seeds, points), restart, method == "k-means++")


def _result(outputs: tuple[Tensor, ...]) -> KMeans:
    centroids, labels, inertia, iterations, rows, offsets = outputs
    return KMeans(centroids, labels, offsets.diff(dim=1), inertia, iterations, rows, offsets)


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
    "radii": ("problems, count", torch.float32),
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
    "kmeans_init(Tensor points, SymInt clusters, Tensor seeds, int restart, bool plus_plus) -> Tensor rows",
    {"points": "problems, count, width", "seeds": "problems", "rows": "problems, clusters"},
    check_sizes=check_problems,
    check=_check_finite,
    run=_run,
)
