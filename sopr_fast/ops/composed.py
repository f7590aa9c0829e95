"""Encoders composed of torch operators and `ops.segment_*`: SOPR-MLP, and SOPR-T where there is no fused kernel.

Gradients recompute a few policies at a time, so memory does not grow with policies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, pad
from torch.utils.checkpoint import checkpoint

from ..runtime import devices
from ..runtime.devices import without_autocast
from .encoder_parameters import EncoderOptions, encoder_shapes, views
from .segment_attention import segment_attention
from .segment_dropout import AFTER_ATTENTION, AFTER_FEED_FORWARD, INSIDE_FEED_FORWARD, segment_dropout
from .segment_mean import segment_mean

MAX_TOKENS = 1 << 16  # of a group of policies


def segment_encoder(*tensors: Tensor, rng: Tensor | None = None, **values: Any) -> Tensor:
    """Compute `ops.segment_encoder` from smaller operators, always in fp32; keeps all activations for autograd."""
    options, (states, columns, *_, parameters) = EncoderOptions(**values), tensors
    width, heads, first = options.width, options.heads, 2 * options.project
    inputs = states.shape[1] + columns.shape[2]
    weights = views(parameters, encoder_shapes(inputs, width, options.layers, options.feedforward, options.project))

    def encode(x: Tensor, segments: Tensor) -> Tensor:
        for layer in range(options.layers):
            w, place = weights[first + 12 * layer :], _place(options, rng, layer)
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
            x = layer_norm(x + inner, (width,), w[10], w[11])
        return x

    return _encode_tokens(tensors, weights[:first], encode, options.pool)


def segment_encoder_backward(
    grad_out: Tensor, *tensors: Tensor, columns_grad: bool, segment_base: int, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of the parameters and, if asked for, of the columns of `ops.segment_encoder`, in fp32.

    Recomputes a few policies at a time.
    """
    states, columns, rows, offsets, parameters = tensors
    parameters = parameters.detach().requires_grad_()
    grad_parameters = torch.zeros_like(parameters)
    grad_columns = torch.zeros_like(columns) if columns_grad else None
    for start, some_columns, base in _groups(columns, rows, offsets, segment_base):
        leaf = some_columns.detach().requires_grad_(columns_grad)
        with torch.enable_grad(), without_autocast(columns.device):
            out = segment_encoder(states, leaf, rows, offsets, parameters, segment_base=base, **options)
        leaves = (parameters, leaf) if columns_grad else (parameters,)
        grads = torch.autograd.grad(
            out, leaves, grad_out[start : start + len(leaf)], allow_unused=True, materialize_grads=True
        )
        grad_parameters += grads[0]
        if grad_columns is not None:
            grad_columns[start : start + len(leaf)] = grads[1]
    return grad_parameters, grad_columns


def mlp_encoder(*tensors: Tensor, rng: Tensor | None, **values: Any) -> Tensor:
    """Encode every segment of every (policy, subset) with SOPR-MLP (paper section 4.4), in fp32.

    A layer is two linear maps with dropout and ReLU between them. Arguments and result are those of
    `ops.segment_encoder`, but for the parameters: weight and bias of the projection, if any, and of the two linear maps
    of every layer, flat.
    """
    options, (states, columns, rows, offsets, parameters) = EncoderOptions(**values), tensors
    rng = None if rng is None else rng.clone()  # the backward pass draws the masks again
    width, feedforward, first = options.width, options.feedforward, 2 * options.project
    shapes: list[tuple[int, ...]] = [(width, states.shape[1] + columns.shape[2]), (width,)] * options.project
    shapes += [(feedforward, width), (feedforward,), (width, feedforward), (width,)] * options.layers
    weights = views(parameters, shapes)

    def encode(some_columns: Tensor, base: int) -> Tensor:
        some = options._replace(segment_base=base)

        def apply(x: Tensor, segments: Tensor) -> Tensor:
            for layer in range(options.layers):
                w, place = weights[first + 4 * layer :], _place(some, rng, layer)
                inner = linear(x, w[0], w[1])
                inner = segment_dropout(inner, segments, probability=some.dropout, site=INSIDE_FEED_FORWARD, **place)
                x = linear(inner.relu(), w[2], w[3])
            return x

        return _encode_tokens((states, some_columns, rows, offsets), weights[:first], apply, options.pool)

    encoded = []
    for _, some_columns, base in _groups(columns, rows, offsets, options.segment_base):
        with without_autocast(some_columns.device):  # segment operators accept float32 only
            if torch.is_grad_enabled():
                result = checkpoint(encode, some_columns, base, use_reentrant=False, preserve_rng_state=False)
            else:
                result = encode(some_columns, base)
        encoded.append(result)
    return torch.cat(encoded)


def _place(options: EncoderOptions, rng: Tensor | None, layer: int) -> dict[str, Any]:
    return {"rng": rng, "level": options.level, "layer": layer, "segment_base": options.segment_base}


def _groups(columns: Tensor, rows: Tensor, offsets: Tensor, segment_base: int) -> Iterator[tuple[int, Tensor, int]]:
    """Yield the first policy, the columns and the first segment's number of groups of policies that fit in memory."""
    size = max(1, MAX_TOKENS // max(1, rows.numel()))
    for start in range(0, max(1, len(columns)), size):
        yield start, columns[start : start + size], segment_base + start * len(rows) * (offsets.shape[1] - 1)


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
