"""Attention inside every segment of a ragged batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import reference
from .checks import check_dropout, check_offsets, check_tensor
from .library import call, contiguous, define, differentiable_once, needs_scratch


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
    return _segment_attention(q, k, v, offsets, scale, dropout, rng, level, layer, segment_base)[0]


def _scratch(offsets: Tensor) -> Tensor | None:
    """Return scratch for the order in which a GPU takes the segments."""
    return torch.empty_like(offsets) if needs_scratch(offsets.device) else None


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    scale: float,
    dropout: float,
    rng: Tensor | None,
    level: int,
    layer: int,
    segment_base: int,
) -> tuple[Tensor, Tensor]:
    q, k, v, offsets, rng = contiguous(q, k, v, offsets, rng)
    out, statistics = torch.empty_like(q), q.new_empty(*q.shape[:2], 2)
    _, heads, dim = q.shape
    call(
        "segment_attention",
        q.device,
        q=q,
        k=k,
        v=v,
        offsets=offsets,
        out=out,
        statistics=statistics,
        segments=len(offsets) - 1,
        heads=heads,
        dim=dim,
        scale=scale,
        rng=rng,
        dropout=dropout,
        level=level,
        layer=layer,
        segment_base=segment_base,
        order=_scratch(offsets),
    )
    return out, statistics


def _backward_kernel(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Tensor,
    out: Tensor,
    statistics: Tensor,
    scale: float,
    dropout: float,
    rng: Tensor | None,
    level: int,
    layer: int,
    segment_base: int,
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, offsets, out, statistics, grad_out, rng = contiguous(q, k, v, offsets, out, statistics, grad_out, rng)
    grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    _, heads, dim = q.shape
    call(
        "segment_attention_backward",
        q.device,
        q=q,
        k=k,
        v=v,
        offsets=offsets,
        out=out,
        statistics=statistics,
        grad_out=grad_out,
        grad_q=grad_q,
        grad_k=grad_k,
        grad_v=grad_v,
        segments=len(offsets) - 1,
        heads=heads,
        dim=dim,
        scale=scale,
        rng=rng,
        dropout=dropout,
        level=level,
        layer=layer,
        segment_base=segment_base,
        order=_scratch(offsets),
    )
    return grad_q, grad_k, grad_v


_SHAPES = {"q": "T, H, D", "k": "T, H, D", "v": "T, H, D", "offsets": "G + 1", "rng": "2"}

_segment_attention_backward = define(
    "segment_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor out, "
    "Tensor statistics, float scale, float dropout, Tensor? rng, int level, int layer, int segment_base) "
    "-> (Tensor, Tensor, Tensor)",
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
    q, k, v, offsets, ctx.scale, ctx.dropout, rng, *ctx.place = inputs
    ctx.save_for_backward(q, k, v, offsets, *output, rng)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, rng = ctx.saved_tensors
    grads = _segment_attention_backward(grad_out, *tensors, ctx.scale, ctx.dropout, rng, *ctx.place)
    return *grads, *[None] * 7


_segment_attention = define(
    "segment_attention(Tensor q, Tensor k, Tensor v, Tensor offsets, float scale, float dropout, Tensor? rng, "
    "int level, int layer, int segment_base) -> (Tensor, Tensor)",
    cpu=_forward,
    cuda=_forward,
    reference=lambda **arguments: (reference.segment_attention(**arguments), None),
    shapes=_SHAPES,
    check=lambda q, k, v, offsets, *_: check_offsets(offsets, len(q)),
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)
