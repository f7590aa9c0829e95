"""Order of the rows of k-means problems by cluster."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .checks import check_rows, check_tensor
from .library import call, define


def sort_by_cluster(labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Sort rows by their cluster, with a stable counting sort.

    Args:
        labels: (B, N) int32, in 0 … k - 1.
        k: Number of clusters.

    Returns:
        rows (B, N) int32 and offsets (B, k + 1) int32. The rows of cluster c are
        ``rows[b, offsets[b, c]:offsets[b, c + 1]]``, ascending.

    Raises:
        TypeError: `labels` is not int32.
        ValueError: `labels` has another shape, or a label is outside 0 … k - 1.

    Equivalent to::

        rows = labels.argsort(dim=1, stable=True).int()
        offsets = torch.stack([torch.bincount(l, minlength=k).cumsum(0) for l in labels])  # preceded by a 0
    """
    labels = check_tensor("labels", labels, "B, N")
    return _sort(labels, k)


def _check_sizes(labels: Tensor, k: int) -> None:
    check_rows("labels", labels)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")


def _check_labels(labels: Tensor, k: int) -> None:
    if not labels.numel():
        return
    low, high = map(int, labels.aminmax())
    if low < 0 or high >= k:
        raise ValueError(f"labels must be in 0 … {k - 1}, got {low} … {high}")


def _kernel(labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    labels = labels.contiguous()
    rows, offsets = _fake(labels, k)
    problems, count = labels.shape
    call(
        "sort_by_cluster",
        labels.device,
        labels=labels,
        rows=rows,
        offsets=offsets,
        problems=problems,
        count=count,
        clusters=k,
    )
    return rows, offsets


def _fake(labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(labels), labels.new_empty(labels.shape[0], k + 1)


_sort = define(
    "sort_by_cluster(Tensor labels, SymInt k) -> (Tensor, Tensor)",
    cpu=_kernel,
    cuda=_kernel,
    reference=reference.sort_by_cluster,
    shapes={"labels": "B, N"},
    check_sizes=_check_sizes,
    check=_check_labels,
    fake=_fake,
)
