"""Attention inside every segment of a ragged batch."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .library import call, check_offsets, check_tensor, contiguous, define, once
from .segment_dropout import drops


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
    """Softmax attention of the rows of each segment to one another, head by head (paper section 3.1).

    Args:
        q, k, v: (T, H, D) float32.
        offsets: (G + 1,) int32; segment g is rows ``offsets[g]:offsets[g + 1]``, all rows are covered.
        scale: of the products q k; 1 / sqrt(D) by default.
        dropout: probability that a weight is dropped, with the masks of csrc/philox.h, site 0.
        rng: (2,) int64 on the device of q: seed and step. None: no dropout.
        level, layer: place in the model. segment_base: number of the first segment.

    Returns:
        (T, H, D) float32. Differentiable once in q, k and v. No segment is too long: memory grows with T.

    Raises:
        NotImplementedError: a second derivative.
        TypeError, ValueError: a wrong dtype, shape, probability or offsets (on the CPU, what they hold too).

    Equivalent to, without dropout::

        parts = [F.scaled_dot_product_attention(*(x[a:b].transpose(0, 1) for x in (q, k, v)), scale=scale)
                 for a, b in zip(offsets, offsets[1:])]
        torch.cat([part.transpose(0, 1) for part in parts])
    """
    q = check_tensor("q", q, torch.float32, "T", "H", "D")
    k = check_tensor("k", k, torch.float32, *q.shape)
    v = check_tensor("v", v, torch.float32, *q.shape)
    offsets = check_tensor("offsets", offsets, torch.int32, "G + 1")
    scale = max(1, q.shape[2]) ** -0.5 if scale is None else float(scale)
    if not drops(dropout, rng):
        dropout, rng = 0.0, None
    return _segment_attention(q, k, v, offsets, scale, dropout, rng, level, layer, segment_base)[0]


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
    sizes = (len(offsets) - 1, q.shape[1], q.shape[2])
    place = (rng, dropout, level, layer, segment_base)
    call("segment_attention", q.device, q, k, v, offsets, out, statistics, *sizes, scale, *place)
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
    *tensors, rng = contiguous(q, k, v, offsets, out, statistics, grad_out, rng)
    grads = tuple(map(torch.empty_like, tensors[:3]))
    sizes = (len(offsets) - 1, q.shape[1], q.shape[2])
    place = (rng, dropout, level, layer, segment_base)
    call("segment_attention_backward", q.device, *tensors, *grads, *sizes, scale, *place)
    return grads


_segment_attention_backward = define(
    "segment_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor out, "
    "Tensor statistics, float scale, float dropout, Tensor? rng, int level, int layer, int segment_base) "
    "-> (Tensor, Tensor, Tensor)",
    cpu=_backward_kernel,
    cuda=_backward_kernel,
    fake=lambda grad_out, q, k, v, *_: tuple(
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)
    ),
    backward=once("segment_attention"),
)


def _fake(q: Tensor, *_) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(*q.shape[:2], 2)


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, offsets, ctx.scale, ctx.dropout, rng, *ctx.place = inputs
    ctx.save_for_backward(q, k, v, offsets, *output, rng)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad_out: Tensor, _) -> tuple[Tensor | None, ...]:
    *tensors, rng = ctx.saved_tensors
    grads = _segment_attention_backward(grad_out, *tensors, ctx.scale, ctx.dropout, rng, *ctx.place)
    return *grads, *[None] * 7


_segment_attention = define(
    "segment_attention(Tensor q, Tensor k, Tensor v, Tensor offsets, float scale, float dropout, Tensor? rng, "
    "int level, int layer, int segment_base) -> (Tensor, Tensor)",
    cpu=_forward,
    cuda=_forward,
    reference=lambda **arguments: (reference.segment_attention(**arguments), None),
    check=lambda q, k, v, offsets, *_: check_offsets(offsets, len(q)),
    fake=_fake,
    backward=_backward,
    setup_context=_setup_context,
)
