"""Every operator in plain torch, for any dtype and device: oracle of the tests and fallback without a kernel."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..runtime import devices

# Dropout sites of csrc/philox.h.
ATTENTION_WEIGHTS, AFTER_ATTENTION, INSIDE_FEED_FORWARD, AFTER_FEED_FORWARD = range(4)
MAX_TOKENS = 1 << 16  # of a product
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
    head, parts = torch.arange(q.shape[1], device=q.device)[:, None], [q[:0]]
    for g, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        queries, keys, values = (x[begin:end].transpose(0, 1) for x in (q, k, v))  # (H, L, D)
        weights = torch.softmax(queries * scale @ keys.mT, -1)
        if rng is not None and dropout > 0:
            place: dict[str, Any] = {"level": level, "layer": layer, "site": ATTENTION_WEIGHTS, "head": head}
            number, row = torch.tensor(segment_base + g, device=q.device), torch.arange(end - begin, device=q.device)
            weights = weights * dropout_mask(number, row, end - begin, rng=rng, probability=dropout, **place)
        parts.append((weights @ values).transpose(0, 1))
    return torch.cat(parts)


def kmeans_assign(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centroid of every point, ties to the lowest index, and its squared distance, (B, N)."""
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
    """Return the rows sorted by cluster, (B, N), and where clusters begin and end, (B, k + 1); see `ops.KMeans`."""
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


class Parts(NamedTuple):
    """Operators that an encoder is composed of."""

    attention: Callable[..., Tensor] = segment_attention
    dropout: Callable[..., Tensor] = segment_dropout
    mean: Callable[..., Tensor] = segment_mean


_OWN_PARTS = Parts()


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
    long_tiles: int = -1,
    parts: Parts = _OWN_PARTS,
) -> Tensor:
    """See `ops.segment_encoder`; computes in the dtype of its tensors, whatever `precision` says."""
    inputs = states.shape[1] + columns.shape[2]
    projection, stack = encoder_tensors(parameters, inputs, width, layers, feedforward, project)

    def encode(x: Tensor, segments: Tensor) -> Tensor:
        for layer, w in enumerate(stack):
            place = {"rng": rng, "level": level, "layer": layer, "segment_base": segment_base}
            drop = functools.partial(parts.dropout, offsets=segments, probability=dropout, **place)
            # Three products, since the kernels would copy slices of one.
            q, k, v = (
                linear(x, weight, bias).view(len(x), heads, width // heads)
                for weight, bias in zip(w[0].chunk(3), w[1].chunk(3), strict=True)
            )
            mixed = parts.attention(q, k, v, segments, dropout=dropout, **place).reshape(len(x), width)
            x = functional.layer_norm(x + drop(linear(mixed, w[2], w[3]), site=AFTER_ATTENTION), (width,), w[4], w[5])
            inner = drop(linear(x, w[6], w[7]).relu(), site=INSIDE_FEED_FORWARD)
            inner = drop(linear(inner, w[8], w[9]), site=AFTER_FEED_FORWARD)
            x = functional.layer_norm(x + inner, (width,), w[10], w[11])
        return x

    return encode_tokens(states, columns, rows, offsets, projection, encode, pool, parts.mean)


def encode_tokens(
    states: Tensor,
    columns: Tensor,
    rows: Tensor,
    offsets: Tensor,
    projection: Sequence[Tensor],
    encode: Callable[[Tensor, Tensor], Tensor],
    pool: bool,
    mean: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Apply a function to the tokens of `ops.segment_encoder`, without waiting for a GPU.

    Args:
        states: See `ops.segment_encoder`, as `columns`, `rows`, `offsets` and `pool`.
        columns: Columns of P policies.
        rows: Indices of states.
        offsets: Offsets of the segments.
        projection: Weight and bias of a linear map that precedes, or nothing.
        encode: Function from tokens (T, width) and offsets of all segments to tokens.
        pool: Return means of segments.
        mean: Function from tokens and offsets to these means.
    """
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
    segments = functional.pad(torch.cat([begins.flatten(), ends[-1:]]), (0, 1), value=len(x))
    place = None if all_used else places(unused_tokens)
    x = encode(x if place is None else torch.zeros_like(x).index_copy(0, place, x), segments)
    if pool:
        return mean(x, segments)[:-1].view(policies, subsets, clusters, x.shape[1])
    if place is not None:
        x = x.index_select(0, place).masked_fill(unused_tokens.view(-1, 1), 0.0)
    return x.view(policies, subsets, count, x.shape[1])


def places(unused: Tensor) -> Tensor:
    """Return where each token goes so that unused ones stand last and others keep their order.

    Args:
        unused: (cells, N) bool.

    Returns:
        (cells * N,) int64.
    """
    flat = unused.flatten()
    used = (~flat).cumsum(0)
    return torch.where(flat, used[-1:] + flat.cumsum(0), used) - 1


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W^T + b, computed in tiles of rows on a CPU: an interrupt is answered between two products."""
    if x.device.type != "cpu" or x.shape[-2] <= MAX_TOKENS:
        return functional.linear(x, weight, bias)
    return torch.cat([functional.linear(rows, weight, bias) for rows in x.split(MAX_TOKENS, -2)], -2)
