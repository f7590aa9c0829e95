"""Encoders composed of torch operators and `ops.segment_*`: SOPR-MLP, and SOPR-T where there is no fused kernel.

Gradients recompute a few policies at a time, so memory does not grow with policies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, pad

from ..runtime import devices
from ..runtime.devices import without_autocast
from .encoder_parameters import EncoderOptions, encoder_shapes, views
from .segment_attention import segment_attention
from .segment_dropout import AFTER_ATTENTION, AFTER_FEED_FORWARD, INSIDE_FEED_FORWARD, segment_dropout
from .segment_mean import segment_mean

MAX_TOKENS = 1 << 16  # of a group of policies


def segment_encoder(*tensors: Tensor, rng: Tensor | None = None, **values: Any) -> Tensor:
    """Compute `ops.segment_encoder` from smaller operators, always in fp32."""
    options, (states, columns, *_, parameters) = EncoderOptions(**values), tensors
    width, heads, first = options.width, options.heads, 2 * options.project
    inputs = states.shape[1] + columns.shape[2]
    weights = views(parameters, encoder_shapes(inputs, width, options.layers, options.feedforward, options.project))

    def encode(x: Tensor, segments: Tensor, layer: int, place: dict[str, Any]) -> Tensor:
        w = weights[first + 12 * layer :]
        drop: Callable[..., Tensor] = functools.partial(
            segment_dropout, offsets=segments, probability=options.dropout, **place
        )
        # Three products, since the kernels would copy slices of one.
        q, k, v = (
            linear(x, weight, bias).view(len(x), heads, width // heads)
            for weight, bias in zip(w[0].chunk(3), w[1].chunk(3), strict=True)
        )
        mixed = segment_attention(q, k, v, segments, dropout=options.dropout, **place).reshape(len(x), width)
        x = layer_norm(x + drop(linear(mixed, w[2], w[3]), site=AFTER_ATTENTION), (width,), w[4], w[5])
        inner = drop(linear(x, w[6], w[7]).relu(), site=INSIDE_FEED_FORWARD)
        inner = drop(linear(inner, w[8], w[9]), site=AFTER_FEED_FORWARD)
        return layer_norm(x + inner, (width,), w[10], w[11])

    return _encode_policies(tensors, weights[:first], encode, options, rng)


def mlp_encoder(*tensors: Tensor, rng: Tensor | None, **values: Any) -> Tensor:
    """Encode every segment of every (policy, subset) with SOPR-MLP (paper section 4.4), in fp32.

    A layer is two linear maps with dropout and ReLU between them. Arguments and result are those of
    `ops.segment_encoder`, but for the parameters: weight and bias of the projection, if any, and of the two linear maps
    of every layer, flat.
    """
    options, (states, columns, *_, parameters) = EncoderOptions(**values), tensors
    width, feedforward, first = options.width, options.feedforward, 2 * options.project
    shapes: list[tuple[int, ...]] = [(width, states.shape[1] + columns.shape[2]), (width,)] * options.project
    shapes += [(feedforward, width), (feedforward,), (width, feedforward), (width,)] * options.layers
    weights = views(parameters, shapes)

    def encode(x: Tensor, segments: Tensor, layer: int, place: dict[str, Any]) -> Tensor:
        w = weights[first + 4 * layer :]
        inner = linear(x, w[0], w[1])
        inner = segment_dropout(inner, segments, probability=options.dropout, site=INSIDE_FEED_FORWARD, **place)
        return linear(inner.relu(), w[2], w[3])

    return _encode_policies(tensors, weights[:first], encode, options, rng)


def _encode_policies(
    tensors: Sequence[Tensor],
    projection: Sequence[Tensor],
    encode: Callable[..., Tensor],
    options: EncoderOptions,
    rng: Tensor | None,
) -> Tensor:
    """Apply a projection and layers to the tokens of `ops.segment_encoder`, for a few policies at a time.

    `encode` is a layer, which gets tokens (T, width), the offsets of all segments, its number and its dropout masks.
    """
    states, columns, rows, offsets, *_ = tensors
    rng = None if rng is None else rng.clone()  # the backward pass draws the masks again

    def encode_some(some: Tensor, base: int) -> Tensor:
        def apply(x: Tensor, segments: Tensor) -> Tensor:
            for layer in range(options.layers):
                place = {"rng": rng, "level": options.level, "layer": layer, "segment_base": base}
                x = encode(x, segments, layer, place)
            return x

        return _encode_tokens((states, some, rows, offsets), projection, apply, options.pool)

    encoded, size = [], max(1, MAX_TOKENS // max(1, rows.numel()))
    for start in range(0, max(1, len(columns)), size):
        some, base = columns[start : start + size], options.segment_base + start * offsets[:, 1:].numel()
        with without_autocast(columns.device):  # segment operators accept float32 only
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                from torch.utils.checkpoint import checkpoint  # in older torch it imports sympy

                encoded.append(checkpoint(encode_some, some, base, use_reentrant=False, preserve_rng_state=False))
            else:
                encoded.append(encode_some(some, base))
    return torch.cat(encoded)


def _encode_tokens(
    tensors: Sequence[Tensor], projection: Sequence[Tensor], encode: Callable[[Tensor, Tensor], Tensor], pool: bool
) -> Tensor:
    """Apply a projection and a function to the tokens of `ops.segment_encoder`, without waiting for a GPU.

    The function gets tokens (T, width) and the offsets of all segments.
    """
    states, columns, rows, offsets, *_ = tensors
    subsets, count = rows.shape
    clusters, policies = offsets.shape[1] - 1, len(columns)
    index = rows.reshape(-1).long()
    unused = torch.arange(count, device=rows.device) >= offsets[:, -1:]  # (S, N), rows after the last segment
    all_used = not devices.runs_ahead(rows.device) and not unused.any()
    x = torch.cat([states[index].expand(policies, -1, -1), columns[:, index]], -1).flatten(0, 1)
    if projection:
        x = linear(x, *projection).relu()
    unused_tokens = unused.repeat(policies, 1)
    sizes = offsets[:, -1].repeat(policies)
    ends = sizes.cumsum(0, dtype=torch.int32)
    begins = (ends - sizes)[:, None] + offsets[:, :-1].repeat(policies, 1)
    segments = pad(torch.cat([begins.flatten(), ends[-1:]]), (0, 1), value=len(x))
    place = None if all_used else places(unused_tokens)
    x = encode(x if place is None else torch.zeros_like(x).index_copy(0, place, x), segments)
    if pool:
        return segment_mean(x, segments)[:-1].view(policies, subsets, clusters, x.shape[1])
    if place is not None:
        x = x.index_select(0, place).masked_fill(unused_tokens.view(-1, 1), 0.0)
    return x.view(policies, subsets, count, x.shape[1])


def places(unused: Tensor) -> Tensor:
    """Return where each of (cells, N) tokens goes so that unused ones stand last and others keep their order."""
    flat = unused.flatten()
    used = (~flat).cumsum(0)
    return torch.where(flat, used[-1:] + flat.cumsum(0), used) - 1
