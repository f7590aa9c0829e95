"""Mean of the rows of every segment of a ragged batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .library import call, define, differentiable_once
from .tensor_checks import check_offsets


def segment_mean(x: Tensor, offsets: Tensor) -> Tensor:
    """Average the rows of each segment (mean pooling, paper section 3.1); 0 for an empty segment.

    Args:
        x: (T, E) float32.
        offsets: (G + 1,) int32; segment g is rows ``offsets[g]:offsets[g + 1]``. Segments cover all rows.

    Returns:
        (G, E) float32, differentiable once in `x`.

    Raises:
        NotImplementedError: A second derivative, or one in forward mode, is requested.
        TypeError: An argument has another dtype.
        ValueError: An argument has another shape, or offsets (on the CPU) do not ascend from 0 to T.

    Equivalent to::

        torch.stack([x[a:b].mean(0) if b > a else x.new_zeros(E) for a, b in zip(offsets, offsets[1:])])
    """
    return _segment_mean(x, offsets)


def _forward(x: Tensor, offsets: Tensor) -> Tensor:
    x, offsets = x.contiguous(), offsets.contiguous()
    out = x.new_empty(len(offsets) - 1, x.shape[1])
    segments, width = out.shape
    call("segment_mean", x.device, x=x, offsets=offsets, out=out, segments=segments, width=width)
    return out


def _backward_kernel(grad_out: Tensor, offsets: Tensor, tokens: int) -> Tensor:
    grad_out, offsets = grad_out.contiguous(), offsets.contiguous()
    grad_x = grad_out.new_empty(tokens, grad_out.shape[1])
    segments, width = grad_out.shape
    call(
        "segment_mean_backward",
        grad_out.device,
        grad_out=grad_out,
        offsets=offsets,
        grad_x=grad_x,
        segments=segments,
        width=width,
    )
    return grad_x


_segment_mean_backward = define(
    "segment_mean_backward(Tensor grad_out, Tensor offsets, SymInt tokens) -> Tensor",
    cpu=_backward_kernel,
    cuda=_backward_kernel,
    shapes={"grad_out": "G, E", "offsets": "G + 1"},
    check=lambda grad_out, offsets, tokens: check_offsets(offsets, tokens),
    fake=lambda grad_out, offsets, tokens: grad_out.new_empty(tokens, grad_out.shape[1]),
    backward=differentiable_once("segment_mean"),
)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    x, offsets = inputs
    ctx.save_for_backward(offsets)
    ctx.tokens = x.shape[0]


def _backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
    (offsets,) = ctx.saved_tensors
    return _segment_mean_backward(grad_out, offsets, ctx.tokens), None


_segment_mean: Callable = define(
    "segment_mean(Tensor x, Tensor offsets) -> Tensor",
    cpu=_forward,
    cuda=_forward,
    shapes={"x": "T, E", "offsets": "G + 1"},
    check=lambda x, offsets: check_offsets(offsets, len(x)),
    fake=lambda x, offsets: x.new_empty(offsets.shape[0] - 1, x.shape[1]),
    backward=_backward,
    setup_context=_setup_context,
)
