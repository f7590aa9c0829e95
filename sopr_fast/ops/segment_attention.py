"""Attention inside every segment of a ragged batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import native
from .library import Fields, define, longest_first, run_kernel
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


def _run(kernel: str, fields: Fields) -> None:
    offsets = fields["offsets"]
    scratch = native.on_gpu(offsets.device)  # in which a GPU takes segments
    order = torch.empty_like(offsets) if scratch else longest_first(np.diff(offsets.numpy()))
    run_kernel(kernel, fields | {"site": ATTENTION_WEIGHTS, "order": order})


_SHAPES = {name: "tokens, heads, dim" for name in ("q", "k", "v", "out", "grad_out", "grad_q", "grad_k", "grad_v")}
_SHAPES |= {"offsets": "segments + 1", "statistics": "tokens, heads, 2", "rng": "2"}
_OPTIONS = "float scale, float dropout, int level, int layer, int segment_base"

_segment_attention_backward = define(
    "segment_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor out, "
    f"Tensor statistics, Tensor? rng, {_OPTIONS}) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v)",
    _SHAPES,
    check=check_offsets,
    run=_run,
)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, offsets, rng, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, offsets, *output, rng)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_segment_attention_backward(grad_out, *ctx.saved_tensors, *ctx.options), *[None] * 7


_segment_attention = define(
    "segment_attention(Tensor q, Tensor k, Tensor v, Tensor offsets, Tensor? rng, "
    f"{_OPTIONS}) -> (Tensor out, Tensor statistics)",
    _SHAPES,
    check=check_offsets,
    run=_run,
    backward=_backward,
    setup_context=_setup_context,
)
