"""Attention inside every segment of a ragged batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .library import call, contiguous, define, differentiable_once, longest_first
from .segment_dropout import ATTENTION_WEIGHTS
from .tensor_checks import check_dropout, check_offsets, check_tensor


def segment_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    rng: Tensor | None = None,
    level: int = 0,
    layer: int = 0,
    segment_base: int = 0,
) -> Tensor:
    """Compute softmax attention among the rows of each segment, per head (paper section 3.1).

    Args:
        q: Queries, (T, H, D) float32.
        k: Keys, (T, H, D) float32.
        v: Values, (T, H, D) float32.
        offsets: (G + 1,) int32; segment g is rows ``offsets[g]:offsets[g + 1]``. Segments cover all rows.
        scale: Factor of the products of queries and keys; 1 / sqrt(D) by default.
        dropout: Probability of dropping an attention weight, with the masks of csrc/philox.h, site 0.
        rng: (2,) int64 on the device of `q`: seed and step. None disables dropout.
        level: Level of the encoder, 0 or 1.
        layer: Layer of the encoder, 0 to 255 with dropout, which takes at most 4096 heads.
        segment_base: Number of the first segment.

    Returns:
        (T, H, D) float32, differentiable once in `q`, `k` and `v`. Memory grows linearly with T.

    Raises:
        NotImplementedError: A second derivative, or one in forward mode, is requested.
        TypeError: An argument has another dtype.
        ValueError: An argument has another shape or is out of range, or offsets (on the CPU) do not ascend from 0 to
            T.

    Equivalent, without dropout, to::

        parts = [F.scaled_dot_product_attention(*(x[a:b].transpose(0, 1) for x in (q, k, v)), scale=scale)
                 for a, b in zip(offsets, offsets[1:])]
        torch.cat([part.transpose(0, 1) for part in parts])
    """
    q = check_tensor("q", q, "T, H, D")
    scale = max(1, q.shape[2]) ** -0.5 if scale is None else float(scale)
    if not check_dropout(dropout, rng, level=level, layer=layer, heads=q.shape[1]):
        dropout, rng = 0.0, None
    return _segment_attention(q, k, v, offsets, rng, scale, dropout, level, layer, segment_base)[0]


def _run(kernel: str, tensors: tuple[Any, ...], options: tuple[Any, ...], **gradients: Tensor) -> None:
    """Run a kernel on q, k, v, offsets, out, statistics and rng, with the other arguments of the operators."""
    q, k, v, offsets, out, statistics, rng = tensors
    scale, dropout, level, layer, segment_base = options
    call(
        kernel,
        q.device,
        scratch=lambda: {"order": torch.empty_like(offsets)},  # in which a GPU takes segments
        q=q,
        k=k,
        v=v,
        offsets=offsets,
        out=out,
        statistics=statistics,
        segments=len(offsets) - 1,
        heads=q.shape[1],
        dim=q.shape[2],
        scale=scale,
        rng=rng,
        dropout=dropout,
        level=level,
        layer=layer,
        site=ATTENTION_WEIGHTS,
        segment_base=segment_base,
        order=None if offsets.is_cuda else longest_first(np.diff(offsets.numpy())),
        **gradients,
    )


def _forward(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, rng: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor]:
    out, statistics = _fake(q)
    _run("segment_attention", contiguous(q, k, v, offsets, out, statistics, rng), options)
    return out, statistics


def _backward_kernel(grad_out: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    grad_out, *tensors = contiguous(grad_out, *arguments[:7])
    grads = [torch.empty_like(each) for each in tensors[:3]]
    named = dict(zip(("grad_q", "grad_k", "grad_v"), grads, strict=True))
    _run("segment_attention_backward", tuple(tensors), arguments[7:], grad_out=grad_out, **named)
    return tuple(grads)


_SHAPES = {"q": "T, H, D", "k": "T, H, D", "v": "T, H, D", "offsets": "G + 1", "rng": "2"}

_OPTIONS = "float scale, float dropout, int level, int layer, int segment_base"

_segment_attention_backward = define(
    "segment_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor out, "
    f"Tensor statistics, Tensor? rng, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    shapes={**_SHAPES, "grad_out": "T, H, D", "out": "T, H, D", "statistics": "T, H, 2"},
    check=lambda grad_out, q, k, v, offsets, *_: check_offsets(offsets, len(q)),
    cpu=_backward_kernel,
    cuda=_backward_kernel,
    fake=lambda grad_out, q, k, v, *_: tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)
    ),
    backward=differentiable_once("segment_attention"),
)


def _fake(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(*q.shape[:2], 2)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, offsets, rng, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, offsets, *output, rng)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_segment_attention_backward(grad_out, *ctx.saved_tensors, *ctx.options), *[None] * 7


_segment_attention = define(
    f"segment_attention(Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor? rng, {_OPTIONS}) -> (Tensor, Tensor)",
    cpu=_forward,
    cuda=_forward,
    shapes=_SHAPES,
    check=lambda q, k, v, offsets, *_: check_offsets(offsets, len(q)),
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)
