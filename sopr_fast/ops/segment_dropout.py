"""Dropout with masks that depend only on (seed, step) and a value's place in its segment."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .library import define
from .tensor_checks import check_dropout, check_offsets, check_tensor

# Dropout sites of csrc/philox.h.
ATTENTION_WEIGHTS, AFTER_ATTENTION, INSIDE_FEED_FORWARD, AFTER_FEED_FORWARD = range(4)


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
    """Drop values at random, with the masks of csrc/philox.h.

    Args:
        x: (T, E) float32.
        offsets: (G + 1,) int32; segment g is rows ``offsets[g]:offsets[g + 1]``. Segments cover all rows.
        probability: Probability of dropping a value, rounded to a multiple of 1 / 65536.
        rng: (2,) int64 on the device of `x`: seed and step. None disables dropout.
        level: Level of the encoder, 0 or 1.
        layer: Layer of the encoder, 0 to 255.
        site: Dropout site in the layer, 0 to 3.
        segment_base: Number of the first segment.

    Returns:
        (T, E) float32, differentiable in `x`.

    Equivalent to::

        x * (draws >= threshold) / (1 - threshold / 65536)  # draws of 16 bits; threshold = round(65536 probability)
    """
    if not check_dropout(probability, rng, level=level, layer=layer, site=site):
        return check_tensor("x", x, "T, E")
    return _segment_dropout(x, offsets, rng, probability, level, layer, site, segment_base)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, offsets, rng, *ctx.options = inputs
    ctx.save_for_backward(offsets, rng)


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    return _segment_dropout(grad_out, *ctx.saved_tensors, *ctx.options), *[None] * 7


_segment_dropout = define(
    "segment_dropout(Tensor x, Tensor offsets, Tensor rng, float probability, int level, int layer, int site, "
    "int segment_base) -> Tensor out",
    {"x": "tokens, width", "offsets": "segments + 1", "rng": "2", "out": "tokens, width"},
    check=check_offsets,
    backward=_backward,
    setup_context=_setup_context,
)
