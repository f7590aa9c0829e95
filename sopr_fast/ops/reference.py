"""Every operator in plain torch, for any dtype and device: oracle of the tests and fallback without a kernel."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor

# Dropout sites of csrc/philox.h.
ATTENTION_WEIGHTS, AFTER_ATTENTION, INSIDE_FEED_FORWARD, AFTER_FEED_FORWARD = range(4)
_WORD = 0xFFFFFFFF


def segment_mean(x: Tensor, offsets: Tensor) -> Tensor:
    """See `ops.segment_mean`."""
    bounds = offsets.tolist()
    means = [x[a:b].mean(0) if b > a else x.new_zeros(x.shape[1]) for a, b in itertools.pairwise(bounds)]
    return torch.stack(means) if means else x.new_zeros(0, x.shape[1])


def segments_and_rows(offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the segment of each row, and its row in the segment: (T,) and (T,) int64."""
    sizes = offsets.diff().long()
    segment = torch.repeat_interleave(sizes)
    return segment, torch.arange(len(segment), device=offsets.device) - offsets[:-1].long()[segment]


def philox(seed: Tensor | int, step: Tensor | int, *counter: Tensor | int) -> tuple[Tensor, ...]:
    """Compute Philox4x32-10 of csrc/philox.h.

    Words are unsigned 32-bit integers in int64 tensors or, except for at least one, Python integers. They broadcast.

    Args:
        seed: First word of the key.
        step: Second word of the key.
        counter: Four words.

    Returns:
        Four random words.
    """
    c0, c1, c2, c3 = cast("tuple[Tensor, ...]", counter)
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # wraps to the bits of the unsigned product
        c0, c1 = (b >> 32 & _WORD) ^ c1 ^ seed, b & _WORD
        c2, c3 = (a >> 32 & _WORD) ^ c3 ^ step, a & _WORD
        seed, step = seed + 0x9E3779B9 & _WORD, step + 0xBB67AE85 & _WORD
    return c0, c1, c2, c3


def dropout_mask(
    segment: Tensor,
    row: Tensor,
    columns: int,
    *,
    rng: Tensor,
    probability: float,
    level: int,
    layer: int,
    site: int,
    head: Tensor | int = 0,
) -> Tensor:
    """Compute the multipliers of dropout, 0 or 1 / (1 - probability), exactly as csrc/philox.h specifies.

    `segment`, `row` and `head` broadcast against each other.

    Args:
        segment: Segment numbers, integers (...).
        row: Rows in their segments, integers (...).
        columns: Number of columns.
        rng: (2,) int64: seed and step.
        probability: Probability of dropping a value.
        level: Level of the encoder.
        layer: Layer of the encoder.
        site: Dropout site in the layer.
        head: Attention heads, integers (...).

    Returns:
        (..., columns) float32.
    """
    threshold = int(np.float32(probability) * np.float32(65536) + np.float32(0.5))
    scale = np.float32(65536) / np.float32(65536 - threshold) if threshold < 65536 else np.float32(0)
    seed, step = (rng & _WORD).unbind()
    block = torch.arange(-(-columns // 8), device=rng.device)
    place = level << 24 | layer << 16 | site << 12 | torch.as_tensor(head, device=rng.device).long()[..., None]
    words = philox(seed, step, block, row.long()[..., None], segment.long()[..., None] & _WORD, place)
    halves = [word >> shift & 0xFFFF for word in torch.broadcast_tensors(*words) for shift in (0, 16)]
    draws = torch.stack(halves, -1).flatten(-2)[..., :columns]
    return (draws >= threshold).float() * float(scale)


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
    """See `ops.segment_dropout`."""
    if rng is None or probability == 0:
        return x
    segment, row = segments_and_rows(offsets)
    place = {"level": level, "layer": layer, "site": site}
    return x * dropout_mask(segment + segment_base, row, x.shape[1], rng=rng, probability=probability, **place)


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
    """See `ops.segment_attention`."""
    scale = max(1, q.shape[2]) ** -0.5 if scale is None else scale
    drop = functools.partial(
        _drop, rng=rng, probability=dropout, level=level, layer=layer, site=ATTENTION_WEIGHTS, heads=q.shape[1]
    )
    parts = [q[:0]]
    for g, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        queries, keys, values = (x[begin:end].transpose(0, 1)[None] for x in (q, k, v))  # (1, H, L, D)
        number = torch.tensor([segment_base + g], device=q.device)
        weights = drop(number, torch.softmax(queries * scale @ keys.mT, -1))
        parts.append((weights @ values)[0].transpose(0, 1))
    return torch.cat(parts)


def kmeans_assign(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """See `ops.kmeans_assign`."""
    squared = (points[:, :, None] - centroids[:, None]).square().sum(-1)  # (problems, points, clusters)
    labels = squared.argmin(-1)  # the first of equals
    return labels.int(), squared.gather(-1, labels[..., None])[..., 0]


def kmeans_init(points: Tensor, k: int, seeds: Tensor, restart: int, plus_plus: bool) -> Tensor:
    """See `ops.kmeans_init`; without `plus_plus`, distinct rows by Floyd's method."""

    def draw(seed: int, round: int, candidate: int) -> int:
        counter = torch.tensor([candidate]), round, restart, 255 << 24
        low, high, *_ = philox(seed & _WORD, seed >> 32 & _WORD, *counter)
        return int(high) << 32 | int(low)

    def distinct(x: Tensor, seed: int) -> list[int]:
        rows: list[int] = []
        for last in range(len(x) - k, len(x)):
            row = draw(seed, len(rows), 0) * (last + 1) >> 64
            rows.append(last if row in rows else row)
        return rows

    def greedy(x: Tensor, seed: int) -> list[int]:
        rows = [draw(seed, 0, 0) * len(x) >> 64]
        squared = (x - x[rows[0]]).square().sum(-1)
        while len(rows) < k and squared.any():
            ends = squared.double().cumsum(0)
            fractions = [draw(seed, len(rows), candidate) / 2**64 for candidate in range(2 + int(math.log(k)))]
            candidates = torch.searchsorted(ends, ends.new_tensor(fractions) * ends[-1], right=True)
            reduced = torch.minimum((x - x[candidates, None]).square().sum(-1), squared)
            best = int(reduced.sum(-1).argmin())
            rows.append(int(candidates[best]))
            squared = reduced[best]
        return rows + rows[:1] * (k - len(rows))

    choose = greedy if plus_plus else distinct
    rows = [choose(x, seed) for x, seed in zip(points, seeds.tolist(), strict=True)]
    return torch.tensor(rows, dtype=torch.int32, device=points.device).reshape(len(points), k)


def kmeans(points: Tensor, start: Tensor, iterations: int, tolerance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return centroids, labels, inertia and iterations of `ops.kmeans`, started from centroids `start`."""

    def assign(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
        labels, squared = kmeans_assign(x[None], centroids[None])
        empty = labels[0].long().bincount(minlength=len(centroids)) == 0
        if not empty.any() or not squared.any():
            return labels[0], squared[0]
        centroids[int(empty.int().argmax())] = x[squared[0].argmax()]
        return assign(x, centroids)

    def solve(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        settled, steps, moved = False, 0, math.inf
        labels: Tensor | None = None
        squared = x.new_zeros(len(x))
        allowed = tolerance * float(x.var(0, correction=0).mean())
        while steps < iterations and not settled and moved > allowed:
            steps += 1
            before, (labels, squared) = labels, assign(x, centroids)
            settled = before is not None and torch.equal(labels, before)
            if not settled:
                old = centroids.clone()
                for cluster in labels.unique().tolist():
                    centroids[cluster] = x[labels == cluster].mean(0)
                moved = float((centroids - old).square().sum())
        if labels is None or not settled:
            labels, squared = assign(x, centroids)
        return centroids, labels, squared.double().sum(), steps

    centroids, labels = start.clone(), points.new_empty(points.shape[:2], dtype=torch.int32)
    inertia, steps = (points.new_empty(len(points), dtype=dtype) for dtype in (torch.float64, torch.int32))
    for b, x in enumerate(points):
        centroids[b], labels[b], inertia[b], steps[b] = solve(x, start[b].clone())
    return centroids, labels, inertia, steps


def sort_by_cluster(labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See `ops.sort_by_cluster`."""
    sizes = labels.new_zeros(len(labels), k).scatter_add_(1, labels.long(), torch.ones_like(labels))
    offsets = torch.nn.functional.pad(sizes.cumsum(1), (1, 0))
    return labels.argsort(dim=1, stable=True).int(), offsets.int()


def encoder_shapes(
    inputs: int, width: int, layers: int, feedforward: int, project: bool = True
) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that `segment_encoder` expects in its flat parameters, in order.

    First weight and bias of the projection if `project`; then, for every layer, in_proj_weight, in_proj_bias,
    out_proj.weight, out_proj.bias, norm1.weight, norm1.bias, linear1.weight, linear1.bias, linear2.weight,
    linear2.bias, norm2.weight and norm2.bias of torch.nn.TransformerEncoderLayer.

    Args:
        inputs: Width of the tokens before the projection, ds + dc.
        width: Width of the tokens in the layers.
        layers: Number of layers.
        feedforward: Width of the feed-forward block.
        project: Whether a projection precedes the layers.
    """
    attention = [(3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,)]
    feed = [(feedforward, width), (feedforward,), (width, feedforward), (width,), (width,), (width,)]
    return [(width, inputs), (width,)] * project + (attention + feed) * layers


def encoder_tensors(
    parameters: Tensor, inputs: int, width: int, layers: int, feedforward: int, project: bool
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Split flat parameters into the tensors of the projection (none without one) and the 12 tensors of each layer."""
    shapes = encoder_shapes(inputs, width, layers, feedforward, project)
    pieces = parameters.split([math.prod(shape) for shape in shapes])
    tensors = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    first = 2 * project
    return tensors[:first], [tensors[i : i + 12] for i in range(first, len(tensors), 12)]


def segment_encoder(
    states: Tensor,
    columns: Tensor,
    rows: Tensor,
    offsets: Tensor,
    parameters: Tensor,
    *,
    width: int,
    layers: int,
    heads: int,
    feedforward: int,
    project: bool = True,
    pool: bool = True,
    dropout: float = 0.0,
    rng: Tensor | None = None,
    level: int = 0,
    segment_base: int = 0,
    precision: str = "fp32",
) -> Tensor:
    """See `ops.segment_encoder`; computes in the dtype of its tensors, whatever `precision` says."""
    policies, subsets, clusters = len(columns), len(rows), offsets.shape[1] - 1
    inputs = states.shape[1] + columns.shape[2]
    projection, stack = encoder_tensors(parameters, inputs, width, layers, feedforward, project)
    pooled, tokens = [], [columns.new_zeros(policies, 0, width)]
    for s in range(subsets):
        bounds = offsets[s].tolist()
        for k, (begin, end) in enumerate(itertools.pairwise(bounds)):
            if begin == end:
                pooled.append(columns.new_zeros(policies, width))
                continue
            index = rows[s, begin:end].long()
            x = torch.cat([states[index].expand(policies, -1, -1), columns[:, index]], -1)  # (P, L, ds + dc)
            segments = segment_base + (torch.arange(policies, device=rows.device) * subsets + s) * clusters + k
            if project:
                weight, bias = projection
                x = torch.relu(x @ weight.T + bias)
            for layer, tensors in enumerate(stack):
                drop = functools.partial(_drop, segments, rng=rng, probability=dropout, level=level, layer=layer)
                x = _encoder_layer(x, heads, drop, *tensors)
            pooled.append(x.mean(1))
            tokens.append(x)
        tokens.append(columns.new_zeros(policies, rows.shape[1] - bounds[-1], width))
    if pool:
        means = torch.stack(pooled, 1) if pooled else columns.new_zeros(policies, 0, width)
        return means.view(policies, subsets, clusters, width)
    return torch.cat(tokens, 1).view(policies, *rows.shape, width)


def _encoder_layer(x: Tensor, heads: int, drop: Callable, *tensors: Tensor) -> Tensor:
    w_in, b_in, w_out, b_out, g1, b1, w_up, b_up, w_down, b_down, g2, b2 = tensors
    length, width = x.shape[1:]
    q, k, v = (x @ w_in.T + b_in).unflatten(2, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)  # (P, H, L, d)
    scale = (width // heads) ** -0.5
    attended = []
    for begin in range(0, length, 1024):  # avoids an L x L matrix for long segments
        weights = torch.softmax(q[:, :, begin : begin + 1024] * scale @ k.mT, -1)
        attended.append(drop(weights, site=ATTENTION_WEIGHTS, begin=begin, heads=heads) @ v)
    y = torch.cat(attended, 2).transpose(1, 2).reshape(x.shape)
    x = torch.layer_norm(x + drop(y @ w_out.T + b_out, site=AFTER_ATTENTION), (width,), g1, b1)
    y = drop(torch.relu(x @ w_up.T + b_up), site=INSIDE_FEED_FORWARD) @ w_down.T + b_down
    return torch.layer_norm(x + drop(y, site=AFTER_FEED_FORWARD), (width,), g2, b2)


def _drop(
    segments: Tensor,
    x: Tensor,
    *,
    site: int,
    rng: Tensor | None,
    probability: float,
    level: int,
    layer: int,
    begin: int = 0,
    heads: int = 0,
) -> Tensor:
    """Apply dropout to x (P, L, columns), or (P, H, L, columns) with heads; row 0 is row `begin` of its segment."""
    if rng is None or probability == 0:
        return x
    row = torch.arange(begin, begin + x.shape[-2], device=x.device)
    head = torch.arange(heads, device=x.device)[:, None] if heads else 0
    mask = dropout_mask(
        segments.view(-1, *[1] * (x.dim() - 2)),
        row,
        x.shape[-1],
        rng=rng,
        probability=probability,
        level=level,
        layer=layer,
        site=site,
        head=head,
    )
    return x * mask
