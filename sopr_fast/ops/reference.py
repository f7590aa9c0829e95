"""Every operator in plain torch, any dtype and device: the oracle of the tests and the general fallback."""

from __future__ import annotations

import itertools

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
    place = (
        level << 24 | layer << 16 | site << 12 | torch.as_tensor(head, device=rng.device).long()[..., None]
    )
    words = philox(seed, step, block, row.long()[..., None], segment.long()[..., None] & _WORD, place)
    halves = [word >> shift & 0xFFFF for word in torch.broadcast_tensors(*words) for shift in (0, 16)]
    draws = torch.stack(halves, -1).flatten(-2)[..., :columns]
    return torch.where(draws < threshold, 0.0, float(scale)).float()
