"""Encoders composed of torch operators and `ops.segment_*`: SOPR-MLP, and SOPR-T where there is no fused kernel.

Both process a few policies at a time and recompute them in the backward pass, so memory does not grow with policies.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..runtime.devices import without_autocast
from . import reference
from .reference import INSIDE_FEED_FORWARD, MAX_TOKENS, Parts, encode_tokens, linear
from .segment_attention import segment_attention
from .segment_dropout import segment_dropout
from .segment_mean import segment_mean

_PARTS = Parts(segment_attention, segment_dropout, segment_mean)
_log = logging.getLogger(__name__)


def segment_encoder(
    states: Tensor,
    columns: Tensor,
    rows: Tensor,
    offsets: Tensor,
    parameters: Tensor,
    *,
    rng: Tensor | None = None,
    segment_base: int = 0,
    **options: Any,
) -> Tensor:
    """Compute `ops.segment_encoder` from smaller operators, always in fp32."""
    _log.info("segment_encoder runs composed of torch operators on %s, %s", columns.device, columns.dtype)
    rng = _kept(rng)

    def encode(some_columns: Tensor, base: int) -> Tensor:
        return reference.segment_encoder(
            states, some_columns, rows, offsets, parameters, rng=rng, segment_base=base, parts=_PARTS, **options
        )

    return _by_policies(columns, rows, offsets, encode, segment_base)


def segment_encoder_backward(
    grad_out: Tensor,
    states: Tensor,
    columns: Tensor,
    rows: Tensor,
    offsets: Tensor,
    parameters: Tensor,
    *,
    columns_grad: bool,
    segment_base: int,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the gradients of `ops.segment_encoder` from smaller operators, always in fp32.

    Recomputes a few policies at a time.

    Args:
        grad_out: Gradient of the output.
        states: See `ops.segment_encoder`, as all other arguments that are not listed.
        columns_grad: Also return the gradient of the columns.

    Returns:
        Gradients of the parameters and of the columns, or None for the latter.
    """
    parameters = parameters.detach().requires_grad_()
    grad_parameters = torch.zeros_like(parameters)
    grad_columns = torch.zeros_like(columns) if columns_grad else None
    for start, some_columns, base in _groups(columns, rows, offsets, segment_base):
        leaf = some_columns.detach().requires_grad_(columns_grad)
        with torch.enable_grad(), without_autocast(columns.device):
            out = reference.segment_encoder(
                states, leaf, rows, offsets, parameters, segment_base=base, parts=_PARTS, **options
            )
        leaves = (parameters, leaf) if columns_grad else (parameters,)
        grads = torch.autograd.grad(
            out, leaves, grad_out[start : start + len(leaf)], allow_unused=True, materialize_grads=True
        )
        grad_parameters += grads[0]
        if grad_columns is not None:
            grad_columns[start : start + len(leaf)] = grads[1]
    return grad_parameters, grad_columns


def mlp_encoder(
    states: Tensor,
    columns: Tensor,
    rows: Tensor,
    offsets: Tensor,
    parameters: Tensor,
    *,
    width: int,
    layers: int,
    feedforward: int,
    project: bool,
    pool: bool,
    dropout: float,
    rng: Tensor | None,
    level: int,
    segment_base: int = 0,
) -> Tensor:
    """Encode every segment of every (policy, subset) with SOPR-MLP (paper section 4.4).

    A layer is two linear maps with dropout and ReLU between them.

    Args:
        states: (U, dim_s) float32, shared by all policies.
        columns: (P, U, dim_c) float32.
        rows: (S, N) int32; see `ops.segment_encoder`.
        offsets: (S, K + 1) int32; see `ops.segment_encoder`.
        parameters: Weight and bias of the projection, if any, and of the two linear maps of every layer, flat.
        width: Width E of the tokens.
        layers: Number of layers.
        feedforward: Width between the two maps of a layer.
        project: Apply a linear map and ReLU to the tokens first.
        pool: Return means of segments instead of tokens.
        dropout: Probability of dropping a value.
        rng: (2,) int64: seed and step. None disables dropout.
        level: Level of the encoder, 0 or 1, which selects other dropout masks.
        segment_base: Number of the first segment; see `ops.segment_encoder`.

    Returns:
        (P, S, K, E) float32, or (P, S, N, E) without pooling.
    """
    rng = _kept(rng)
    inputs = states.shape[1] + columns.shape[2]
    shapes = [(width, inputs), (width,)] if project else []
    shapes += [(feedforward, width), (feedforward,), (width, feedforward), (width,)] * layers
    parts = parameters.split([math.prod(shape) for shape in shapes])
    tensors = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
    projection, stack = tensors[: 2 * project], tensors[2 * project :]

    def encode(some_columns: Tensor, base: int) -> Tensor:
        def apply(x: Tensor, segments: Tensor) -> Tensor:
            for i in range(layers):
                widen, widen_bias, narrow, narrow_bias = stack[4 * i : 4 * i + 4]
                inner = segment_dropout(
                    linear(x, widen, widen_bias), segments, probability=dropout, rng=rng, level=level, layer=i,
                    site=INSIDE_FEED_FORWARD, segment_base=base,
                )  # fmt: skip
                x = linear(inner.relu(), narrow, narrow_bias)
            return x

        return encode_tokens(states, some_columns, rows, offsets, projection, apply, pool, segment_mean)

    return _by_policies(columns, rows, offsets, encode, segment_base)


def _kept(rng: Tensor | None) -> Tensor | None:
    """Return a copy: the backward pass draws the masks again, when callers may have advanced the step in place."""
    return None if rng is None else rng.clone()


def _groups(columns: Tensor, rows: Tensor, offsets: Tensor, segment_base: int) -> Iterator[tuple[int, Tensor, int]]:
    """Yield the first policy, the columns and the first segment's number of groups of policies that fit in memory."""
    size = max(1, MAX_TOKENS // max(1, rows.numel()))
    for start in range(0, max(1, len(columns)), size):
        yield start, columns[start : start + size], segment_base + start * len(rows) * (offsets.shape[1] - 1)


def _by_policies(
    columns: Tensor, rows: Tensor, offsets: Tensor, encode: Callable[[Tensor, int], Tensor], segment_base: int
) -> Tensor:
    """Encode a few policies at a time, given their columns and the number of the first segment."""
    encoded = []
    for _, some_columns, base in _groups(columns, rows, offsets, segment_base):
        with without_autocast(some_columns.device):  # segment operators accept float32 only
            if torch.is_grad_enabled():
                result = checkpoint(encode, some_columns, base, use_reentrant=False, preserve_rng_state=False)
            else:
                result = encode(some_columns, base)
        encoded.append(result)
    return torch.cat(encoded)
