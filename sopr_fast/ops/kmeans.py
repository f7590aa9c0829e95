"""k-means for a batch of independent problems, and the order of their rows by cluster."""

from __future__ import annotations

import numbers
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..runtime import native
from . import reference
from .library import call, check_tensor, define


class KMeans(NamedTuple):
    """What `kmeans` returns: B problems of N points in D dimensions, K clusters."""

    centroids: Tensor  # (B, K, D) float32
    labels: Tensor  # (B, N) int32, the nearest centroid of every point
    sizes: Tensor  # (B, K) int32
    inertia: Tensor  # (B,) float64, the sum of squared distances to the nearest centroid
    iterations: Tensor  # (B,) int32, Lloyd steps taken
    rows: Tensor  # (B, N) int32, sorted by cluster: see `sort_by_cluster`
    offsets: Tensor  # (B, K + 1) int32


def kmeans(
    points: Tensor,  # (problems, points, dimensions)
    k: int,
    *,
    init: Literal["k-means++", "random"] | Tensor = "k-means++",
    iterations: int = 300,
    tolerance: float = 1e-4,
    restarts: int = 1,
    seeds: Tensor | int = 0,
) -> KMeans:
    """Clusters every problem of a batch with Lloyd's algorithm (paper section 3.1).

    A problem stops when no label changes, when its centroids move by no more than `tolerance` (sum of
    squares, relative to the mean variance of its columns, as in scikit-learn), or after `iterations` steps.
    An empty cluster is moved to the farthest point; only with fewer than `k` distinct points do clusters stay
    empty, with size 0 and a finite centroid. The result for a problem depends on its points and seed alone:
    not on the batch, nor on the number of threads. Nothing is differentiable.

    Args:
        points: (B, N, D) float32, finite.
        k: clusters per problem, at most N.
        init: ``"k-means++"`` (greedy, 2 + ⌊ln k⌋ candidates a round), ``"random"`` (distinct rows) or
            centroids (B, k, D) float32.
        iterations: the most Lloyd steps. With 0, points are assigned to the initial centroids.
        tolerance: 0 stops only at a fixed point.
        restarts: independent starts, of which the one with the least inertia is kept; 1 with given centroids.
        seeds: (B,) int64, or an integer s for s, s + 1, …

    Returns:
        A `KMeans` of centroids, labels, sizes, inertia, iterations, rows and offsets.

    Raises:
        TypeError, ValueError: a wrong dtype or shape, ``k`` outside 1 … N, a point that is not finite (named
            by problem and row), an unknown ``init``.

    Equivalent to::

        centroids = points.gather(1, kmeans_plusplus(points, k, seeds)[..., None].expand(-1, -1, D).long())
        for _ in range(iterations):
            labels, _ = kmeans_assign(points, centroids)
            for x, l, c in zip(points, labels, centroids):
                c[:] = torch.stack([x[l == cluster].mean(0) for cluster in range(k)])
    """
    points = _check_points(points)
    _check_clusters(k, points.shape[1])
    if iterations < 0 or tolerance < 0 or restarts < 1:
        raise ValueError(
            "iterations and tolerance must be at least 0 and restarts at least 1, "
            f"got {iterations}, {tolerance} and {restarts}"
        )
    if isinstance(init, Tensor):
        if restarts != 1:
            raise ValueError(f"restarts must be 1 when centroids are given, got {restarts}")
        start = _check_centroids("init", init, points, k)
        return _result(_lloyd(points, start, iterations, tolerance))
    if init not in ("k-means++", "random"):
        raise ValueError(f"init must be 'k-means++', 'random' or a tensor of centroids, got {init!r}")

    seeds = _check_seeds(seeds, points)
    best = None
    for restart in range(restarts):
        chosen = _init(points, k, seeds, restart, init == "k-means++").long()
        start = points.gather(1, chosen.unsqueeze(2).expand(-1, -1, points.shape[2]))
        result = _lloyd(points, start, iterations, tolerance)
        if best is None:
            best = result
        else:
            better = result[2] < best[2]
            best = tuple(
                torch.where(better.view(-1, *[1] * (new.dim() - 1)), new, old)
                for new, old in zip(result, best, strict=True)
            )
    return _result(best)


def kmeans_plusplus(points: Tensor, k: int, seeds: Tensor | int = 0) -> Tensor:
    """Rows to start k-means from, by greedy k-means++ with 2 + ⌊ln k⌋ candidates a round.

    Once every distinct point is taken, the first row is repeated.

    Args:
        points: (B, N, D) float32, finite.
        k: rows per problem, 1 to N.
        seeds: (B,) int64, or an integer s for s, s + 1, …

    Returns:
        (B, k) int32.

    Raises:
        TypeError, ValueError: a wrong dtype or shape, ``k`` outside 1 … N, a point that is not finite.

    Equivalent to::

        [sklearn.cluster.kmeans_plusplus(x.numpy(), k)[1] for x in points]  # with other draws
    """
    points = _check_points(points)
    _check_clusters(k, points.shape[1])
    return _init(points, k, _check_seeds(seeds, points), 0, True)


def kmeans_assign(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of every point; of several equally near, the one with the lowest index.

    Args:
        points: (B, N, D) float32, finite.
        centroids: (B, K, D) float32, finite, K at least 1.

    Returns:
        labels (B, N) int32, squared distances (B, N) float32.

    Raises:
        TypeError, ValueError: a wrong dtype or shape, or a point or centroid that is not finite.

    Equivalent to::

        squared, labels = (points[:, :, None] - centroids[:, None]).square().sum(-1).min(-1)
    """
    points = _check_points(points)
    return _assign(points, _check_centroids("centroids", centroids, points, "K"))


def sort_by_cluster(labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Rows in the order of their cluster, and where each cluster begins: a stable counting sort.

    Args:
        labels: (B, N) int32, in 0 … k - 1.
        k: clusters.

    Returns:
        rows (B, N) int32, offsets (B, k + 1) int32: the rows labelled c are
        ``rows[b, offsets[b, c]:offsets[b, c + 1]]``, ascending.

    Raises:
        TypeError, ValueError: a wrong dtype or shape, or a label outside 0 … k - 1.

    Equivalent to::

        rows = labels.argsort(1, stable=True).int()
        offsets = torch.stack([torch.bincount(l, minlength=k).cumsum(0) for l in labels])  # with a 0 in front
    """
    labels = check_tensor("labels", labels, torch.int32, "B", "N")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    return _sort(labels, k)


def _check_points(points: Tensor) -> Tensor:
    return check_tensor("points", points, torch.float32, "B", "N", "D").detach()


def _check_centroids(name: str, centroids: Tensor, points: Tensor, k: int | str) -> Tensor:
    centroids = check_tensor(name, centroids, torch.float32, points.shape[0], k, points.shape[2])
    centroids = centroids.detach()
    if centroids.shape[1] < 1:
        raise ValueError(f"{name} must hold at least one centroid, got shape {tuple(centroids.shape)}")
    return centroids


def _check_finite(points: Tensor, centroids: Tensor | None = None, name: str = "centroids") -> None:
    _check_rows_finite("points", points, "row")
    if centroids is not None:
        _check_rows_finite(name, centroids, "centroid")


def _check_labels(labels: Tensor, k: int) -> None:
    if not labels.numel():
        return
    low, high = map(int, labels.aminmax())
    if low < 0 or high >= k:
        raise ValueError(f"labels must lie in 0 … {k - 1}, got {low} … {high}")


def _check_rows_finite(name: str, values: Tensor, row: str) -> None:
    if not values.numel() or all(bound.isfinite() for bound in values.aminmax()):
        return
    problem, at, column = (~values.isfinite()).nonzero()[0].tolist()
    value = values[problem, at, column].item()
    raise ValueError(f"{name} must be finite; problem {problem}, {row} {at}, column {column} is {value}")


def _check_clusters(k: int, count: int) -> None:
    if not 1 <= k <= count:
        raise ValueError(f"k must be between 1 and the {count} points of a problem, got {k}")


def _check_seeds(seeds: Tensor | int, points: Tensor) -> Tensor:
    if isinstance(seeds, numbers.Integral):
        seeds = int(seeds)
        return torch.arange(seeds, seeds + len(points), dtype=torch.int64, device=points.device)
    return check_tensor("seeds", seeds, torch.int64, len(points)).to(points.device)


def _result(outputs: tuple[Tensor, ...]) -> KMeans:
    centroids, labels, inertia, iterations, rows, offsets = outputs
    return KMeans(centroids, labels, offsets.diff(dim=1), inertia, iterations, rows, offsets)


def _assign_kernel(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    points, centroids = points.contiguous(), centroids.contiguous()
    labels, distances = _assign_fake(points, centroids)
    call(
        "kmeans_assign",
        points.device,
        points,
        centroids,
        labels,
        distances,
        *_sizes(points, centroids.shape[1]),
    )
    return labels, distances


def _assign_fake(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    return points.new_empty(points.shape[:2], dtype=torch.int32), points.new_empty(points.shape[:2])


def _init_kernel(points: Tensor, k: int, seeds: Tensor, restart: int, plus_plus: bool) -> Tensor:
    points, seeds = points.contiguous(), seeds.contiguous()
    rows = _init_fake(points, k, seeds, restart, plus_plus)
    memory = _init_memory(points) if _takes_memory(points) else ()
    call("kmeans_init", points.device, points, seeds, rows, *_sizes(points, k), restart, plus_plus, *memory)
    return rows


def _init_fake(points: Tensor, k: int, seeds: Tensor, restart: int, plus_plus: bool) -> Tensor:
    return points.new_empty(points.shape[0], k, dtype=torch.int32)


def _lloyd_kernel(points: Tensor, start: Tensor, iterations: int, tolerance: float) -> tuple[Tensor, ...]:
    points = points.contiguous()
    centroids, labels, inertia, steps, rows, offsets = outputs = _lloyd_fake(points, start, iterations, tolerance)
    centroids.copy_(start)
    pointers = points, centroids, labels, rows, offsets, inertia, steps
    memory = _lloyd_memory(points, start) if _takes_memory(points) else ()
    call("kmeans", points.device, *pointers, *_sizes(points, start.shape[1]), iterations, tolerance, *memory)
    return outputs


def _lloyd_fake(points: Tensor, start: Tensor, iterations: int, tolerance: float) -> tuple[Tensor, ...]:
    (problems, count), k = points.shape[:2], start.shape[1]
    return (
        points.new_empty(start.shape),
        points.new_empty(problems, count, dtype=torch.int32),
        points.new_empty(problems, dtype=torch.float64),
        points.new_empty(problems, dtype=torch.int32),
        points.new_empty(problems, count, dtype=torch.int32),
        points.new_empty(problems, k + 1, dtype=torch.int32),
    )


def _lloyd_reference(points: Tensor, start: Tensor, iterations: int, tolerance: float) -> tuple[Tensor, ...]:
    outputs = reference.kmeans(points, start, iterations, tolerance)
    return *outputs, *reference.sort_by_cluster(outputs[1], start.shape[1])


def _sort_kernel(labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    labels = labels.contiguous()
    rows, offsets = _sort_fake(labels, k)
    call("sort_by_cluster", labels.device, labels, rows, offsets, *labels.shape, k)
    return rows, offsets


def _sort_fake(labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(labels), labels.new_empty(labels.shape[0], k + 1)


def _takes_memory(points: Tensor) -> bool:
    return points.device.type == "cuda"  # CPU kernels have their own


def _init_memory(points: Tensor) -> tuple[Tensor, ...]:
    problems, count = points.shape[:2]
    bins = -(-count // native._cuda.kmeans_bin)
    return points.new_empty(problems, count), points.new_empty(problems, bins, dtype=torch.int64)


def _lloyd_memory(points: Tensor, start: Tensor) -> tuple[Tensor, ...]:
    problems, count, width = points.shape
    sums, sizes = (points.new_empty(shape, dtype=torch.int64) for shape in (start.shape, start.shape[:2]))
    return points.new_empty(problems, count), sums, sizes, points.new_empty(problems, width)


def _sizes(points: Tensor, k: int) -> tuple[int, int, int, int]:
    problems, count, width = points.shape
    return problems, count, k, width


_assign = define(
    "kmeans_assign(Tensor points, Tensor centroids) -> (Tensor, Tensor)",
    cpu=_assign_kernel,
    cuda=_assign_kernel,
    reference=reference.kmeans_assign,
    check=_check_finite,
    fake=_assign_fake,
)
_init = define(
    "kmeans_init(Tensor points, SymInt k, Tensor seeds, int restart, bool plus_plus) -> Tensor",
    cpu=_init_kernel,
    cuda=_init_kernel,
    reference=reference.kmeans_init,
    check=lambda points, *_: _check_finite(points),
    fake=_init_fake,
)
_lloyd = define(
    "kmeans(Tensor points, Tensor start, int iterations, float tolerance)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu=_lloyd_kernel,
    cuda=_lloyd_kernel,
    reference=_lloyd_reference,
    check=lambda points, start, *_: _check_finite(points, start, "init"),
    fake=_lloyd_fake,
)
_sort = define(
    "sort_by_cluster(Tensor labels, SymInt k) -> (Tensor, Tensor)",
    cpu=_sort_kernel,
    cuda=_sort_kernel,
    reference=reference.sort_by_cluster,
    check=_check_labels,
    fake=_sort_fake,
)
