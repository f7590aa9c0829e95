"""Initial centroids of k-means."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..runtime import native
from .checks import check_finite, check_problems, check_seeds, check_tensor
from .library import call, define


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

    Raises:
        TypeError: An argument has another dtype.
        ValueError: An argument has another shape or is out of range, `method` is unknown, or a point is not finite.

    Equivalent to::

        [sklearn.cluster.kmeans_plusplus(x.numpy(), k)[1] for x in points]  # with other random draws
    """
    points = check_tensor("points", points, "B, N, D").detach()
    if not 0 <= restart < 2**32:
        raise ValueError(f"restart must be between 0 and 2^32 - 1, got {restart}")
    if method not in ("k-means++", "random"):
        raise ValueError(f"method must be 'k-means++' or 'random', got {method!r}")
    return _init(points, k, check_seeds(seeds, points), restart, method == "k-means++")


def _kernel(points: Tensor, k: int, seeds: Tensor, restart: int, plus_plus: bool) -> Tensor:
    points, seeds = points.contiguous(), seeds.contiguous()
    rows = _fake(points, k, seeds, restart, plus_plus)
    problems, count, width = points.shape

    def scratch() -> dict[str, Tensor]:
        return {
            "squared": points.new_empty(problems, count),
            "weights": points.new_empty(problems, -(-count // native._cuda.kmeans_bin), dtype=torch.int64),
            "labels": points.new_empty(problems, count, dtype=torch.int32),
            "radii": points.new_empty(problems, count),
            "order": points.new_empty(problems, count, dtype=torch.int32),
            "anchors": points.new_empty(problems, count, dtype=torch.int32),
            "ends": points.new_empty(problems, k, native._cuda.kmeans_distances, dtype=torch.int32),
        }

    call(
        "kmeans_init",
        points.device,
        scratch=scratch,
        points=points,
        seeds=seeds,
        rows=rows,
        problems=problems,
        count=count,
        clusters=k,
        width=width,
        restart=restart,
        plus_plus=plus_plus,
    )
    return rows


def _fake(points: Tensor, k: int, seeds: Tensor, restart: int, plus_plus: bool) -> Tensor:
    return points.new_empty(points.shape[0], k, dtype=torch.int32)


_init = define(
    "kmeans_init(Tensor points, SymInt k, Tensor seeds, int restart, bool plus_plus) -> Tensor",
    cpu=_kernel,
    cuda=_kernel,
    shapes={"points": "B, N, D", "seeds": "B"},
    check_sizes=lambda points, k, *_: check_problems(points, k),
    check=lambda points, *_: check_finite("points", points, "row"),
    fake=_fake,
)
