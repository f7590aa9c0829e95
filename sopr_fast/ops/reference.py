"""Every operator in plain torch, any dtype and device: the oracle of the tests and the general fallback."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def segment_mean(x: Tensor, offsets: Tensor) -> Tensor:
    """See `ops.segment_mean`."""
    bounds = offsets.tolist()
    means = [x[a:b].mean(0) if b > a else x.new_zeros(x.shape[1]) for a, b in itertools.pairwise(bounds)]
    return torch.stack(means) if means else x.new_zeros(0, x.shape[1])


def segments_and_rows(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The segment of each of the T rows, and its row in that segment: (T,), (T,) int64."""
    sizes = offsets.diff().long()
    segment = torch.repeat_interleave(sizes)
    return segment, torch.arange(len(segment), device=offsets.device) - offsets[:-1].long()[segment]


def philox(seed: Tensor | int, step: Tensor | int, *counter: Tensor | int) -> tuple[Tensor, ...]:
    """Philox4x32-10 of csrc/philox.h: key (seed, step), four counter words, four words out.

    All are int64 tensors (or integers, but not all) that hold unsigned 32-bit words, and broadcast.
    """
    c0, c1, c2, c3 = counter
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # wraps to the bits of the unsigned product
        c0, c1 = (b >> 32 & _WORD) ^ c1 ^ seed, b & _WORD
        c2, c3 = (a >> 32 & _WORD) ^ c3 ^ step, a & _WORD
        seed, step = seed + 0x9E3779B9 & _WORD, step + 0xBB67AE85 & _WORD
    return c0, c1, c2, c3


def dropout_mask(
    segment: Tensor,  # (...) integers: segment numbers
    row: Tensor,  # (...) integers: rows in their segments
    columns: int,
    *,
    rng: Tensor,  # (2,) int64: seed, step
    probability: float,
    level: int,
    layer: int,
    site: int,
    head: Tensor | int = 0,  # (...) integers
) -> Tensor:  # (..., columns) float32
    """The multipliers of dropout, 0 or 1 / (1 - probability), exactly those of csrc/philox.h.

    `segment`, `row` and `head` broadcast against each other.
    """
    threshold = int(np.float32(probability) * np.float32(65536) + np.float32(0.5))
    scale = np.float32(65536) / np.float32(65536 - threshold) if threshold < 65536 else np.float32(0)
    seed, step = (rng & _WORD).unbind()
    block = torch.arange(-(-columns // 8), device=rng.device)
    place = level << 24 | layer << 16 | site << 12 | torch.as_tensor(head, device=rng.device).long()[..., None]
    words = philox(seed, step, block, row.long()[..., None], segment.long()[..., None] & _WORD, place)
    halves = [word >> shift & 0xFFFF for word in torch.broadcast_tensors(*words) for shift in (0, 16)]
    draws = torch.stack(halves, -1).flatten(-2)[..., :columns]
    return torch.where(draws < threshold, 0.0, float(scale)).float()


def kmeans_assign(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """See `ops.kmeans_assign`."""
    squared = (points[:, :, None] - centroids[:, None]).square().sum(-1)  # (problems, points, clusters)
    labels = squared.argmin(-1)  # the first of equals
    return labels.int(), squared.gather(-1, labels[..., None])[..., 0]


def kmeans_init(points: Tensor, k: int, seeds: Tensor, restart: int, plus_plus: bool) -> Tensor:
    """See `ops.kmeans_plusplus`; without `plus_plus`, distinct rows by Floyd's method."""

    def fraction(seed: int, round: int, number: int) -> int:
        place = torch.tensor([number]), round, restart, 255 << 24
        low, high, *_ = philox(seed & _WORD, seed >> 32 & _WORD, *place)
        return int(high) << 32 | int(low)

    def distinct(x: Tensor, seed: int) -> list[int]:
        rows = []
        for last in range(len(x) - k, len(x)):
            row = fraction(seed, len(rows), 0) * (last + 1) >> 64
            rows.append(last if row in rows else row)
        return rows

    def greedy(x: Tensor, seed: int) -> list[int]:
        rows = [fraction(seed, 0, 0) * len(x) >> 64]
        now = (x - x[rows[0]]).square().sum(-1)
        while len(rows) < k and now.any():
            ends = now.cumsum(0)
            shares = [fraction(seed, len(rows), number) / 2**64 for number in range(2 + int(math.log(k)))]
            drawn = torch.searchsorted(ends, torch.tensor(shares, dtype=x.dtype) * ends[-1], right=True)
            then = torch.minimum((x - x[drawn, None]).square().sum(-1), now)
            best = int(then.sum(-1).argmin())
            rows.append(int(drawn[best]))
            now = then[best]
        return rows + rows[:1] * (k - len(rows))

    choose = greedy if plus_plus else distinct
    rows = [choose(x, seed) for x, seed in zip(points, seeds.tolist(), strict=True)]
    return torch.tensor(rows, dtype=torch.int32).reshape(len(points), k)


def kmeans(points: Tensor, start: Tensor, iterations: int, tolerance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lloyd's steps of `ops.kmeans` from given centroids: centroids, labels, inertia, iterations."""

    def assign(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
        labels, squared = kmeans_assign(x[None], centroids[None])
        empty = labels[0].long().bincount(minlength=len(centroids)) == 0
        if not empty.any() or not squared.any():
            return labels[0], squared[0]
        centroids[int(empty.int().argmax())] = x[squared[0].argmax()]
        return assign(x, centroids)

    def solve(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        labels, settled, steps, moved = None, False, 0, math.inf
        allowed = tolerance * float(x.var(0, correction=0).mean())
        while steps < iterations and not settled and moved > allowed:
            steps += 1
            before, (labels, squared) = labels, assign(x, centroids)
            settled = before is not None and torch.equal(labels, before)
            if not settled:
                old = centroids.clone()
                for cluster in labels.unique().tolist():
                    centroids[cluster] = x[labels == cluster].mean(0)
                moved = float((centroids - old).square().sum())
        if not settled:
            labels, squared = assign(x, centroids)
        return centroids, labels, squared.sum(), steps

    solved = [solve(x, centroids.clone()) for x, centroids in zip(points, start, strict=True)]
    centroids, labels, inertia, steps = zip(*solved, strict=True)
    return torch.stack(centroids), torch.stack(labels), torch.stack(inertia), torch.tensor(steps).int()


def sort_by_cluster(labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See `ops.sort_by_cluster`."""
    sizes = torch.stack([row.long().bincount(minlength=k) for row in labels])
    offsets = torch.nn.functional.pad(sizes.cumsum(1), (1, 0))
    return labels.argsort(dim=1, stable=True).int(), offsets.int()
