"""Mean of the rows of every segment of a ragged batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .library import define
from .tensor_checks import check_offsets


def segment_mean(x: Tensor, offsets: Tensor) -> Tensor:
    """Average the rows of each segment (mean pooling, paper section 3.1); 0 for an empty segment.

    Args:
        x: (T, E) float32.
        offsets: (G + 1,) int32; segment g is rows ``offsets[g]:offsets[g + 1]``. Segments cover all rows.

    Returns:
        (G, E) float32, differentiable once in `x`.

    Equivalent to::

        torch.stack([x[a:b].mean(0) if b > a else x.new_zeros(E) for a, b in zip(offsets, offsets[1:])])
    """
    return _segment_mean(x, offsets)


_segment_mean_backward = define(
    "segment_mean_backward(Tensor grad_out, Tensor offsets, SymInt tokens) -> Tensor grad_x",
    {"grad_out": "segments, width", "offsets": "segments + 1", "grad_x": "tokens, width"},
    check=check_offsets,
)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    x, offsets = inputs
    ctx.save_for_backward(offsets)
    ctx.tokens = x.shape[0]


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
    return _segment_mean_backward(grad_out, *ctx.saved_tensors, ctx.tokens), None


_segment_mean = define(
    "segment_mean(Tensor x, Tensor offsets) -> Tensor out",
    {"x": "tokens, width", "offsets": "segments + 1", "out": "segments, width"},
    check=check_offsets,
    backward=_backward,
    setup_context=_setup_context,
)
