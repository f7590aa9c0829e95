"""Dropout whose masks depend on (seed, step) and on a value's place in its segment alone."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .library import call, check_offsets, check_tensor, contiguous, define


def segment_dropout(
    x: Tensor,
    offsets: Tensor,
    *,
    probability: float,
    rng: Tensor | None,
    level: int = 0,
    layer: int = 0,
    site: int = 0,
    segment_base: int = 0,
) -> Tensor:
    """Dropout of the rows of every segment, with the masks of csrc/philox.h.

    Args:
        x: (T, E) float32.
        offsets: (G + 1,) int32; segment g is rows ``offsets[g]:offsets[g + 1]``, all rows are covered.
        probability: of a value being dropped, to 1 / 65536.
        rng: (2,) int64 on the device of x: seed and step. None: no dropout.
        level, layer, site: place in the model. segment_base: number of the first segment.

    Returns:
        (T, E) float32. Differentiable in x.

    Raises:
        TypeError, ValueError: a wrong dtype, shape, probability or offsets (on the CPU, what they hold too).

    Equivalent to::

        segment, row = reference.segments_and_rows(offsets)
        x * reference.dropout_mask(segment + segment_base, row, E, rng=rng, probability=probability, ...)
    """
    x = check_tensor("x", x, torch.float32, "T", "E")
    offsets = check_tensor("offsets", offsets, torch.int32, "G + 1")
    if not drops(probability, rng):
        return x
    return _segment_dropout(x, offsets, rng, probability, level, layer, site, segment_base)


def drops(probability: float, rng: Tensor | None) -> bool:
    """Whether there is dropout at all; a wrong probability or rng raises."""
    if not 0 <= probability < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {probability}")
    if rng is None or probability == 0:
        return False
    check_tensor("rng", rng, torch.int64, 2)
    return True


def _kernel(
    x: Tensor,
    offsets: Tensor,
    rng: Tensor,
    probability: float,
    level: int,
    layer: int,
    site: int,
    segment_base: int,
) -> Tensor:
    x, offsets, rng = contiguous(x, offsets, rng)
    out = torch.empty_like(x)
    place = (level, layer, site, segment_base)
    call("segment_dropout", x.device, x, offsets, out, len(offsets) - 1, x.shape[1], rng, probability, *place)
    return out


def _setup_context(ctx, inputs, output) -> None:
    _, offsets, rng, *ctx.options = inputs
    ctx.save_for_backward(offsets, rng)


def _backward(ctx, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    return _segment_dropout(grad_out, *ctx.saved_tensors, *ctx.options), *[None] * 7


_segment_dropout = define(
    "segment_dropout(Tensor x, Tensor offsets, Tensor rng, float probability, int level, int layer, int site, "
    "int segment_base) -> Tensor",
    cpu=_kernel,
    cuda=_kernel,
    reference=reference.segment_dropout,
    check=lambda x, offsets, *_: check_offsets(offsets, len(x)),
    fake=lambda x, *_: torch.empty_like(x, memory_format=torch.contiguous_format),
    backward=_backward,
    setup_context=_setup_context,
)
