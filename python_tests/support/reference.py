"""Every operator in plain torch, for any dtype: the oracle of the tests."""

import itertools
import math

import numpy as np
import torch
from torch.nn import functional

from sopr_fast import ops
from sopr_fast.ops.encoder_parameters import EncoderOptions

mlp, mlp_step = ops.mlp, ops.mlp_step  # which compute by torch in float64

# Dropout sites of csrc/philox.h.
ATTENTION_WEIGHTS, AFTER_ATTENTION, INSIDE_FEED_FORWARD, AFTER_FEED_FORWARD = range(4)
_WORD = 0xFFFFFFFF


def segment_mean(x, offsets):
    bounds = offsets.tolist()
    means = [x[a:b].mean(0) if b > a else x.new_zeros(x.shape[1]) for a, b in itertools.pairwise(bounds)]
    return torch.stack(means) if means else x.new_zeros(0, x.shape[1])


def segments_and_rows(offsets):
    """Return the segment of each row, and its row in the segment: (T,) and (T,) int64."""
    sizes = offsets.diff().long()
    segment = torch.repeat_interleave(sizes)
    return segment, torch.arange(len(segment), device=offsets.device) - offsets[:-1].long()[segment]


def philox(seed, step, *counter):
    """Compute Philox4x32-10 of csrc/philox.h for two words of the key and four of the counter; words broadcast.

    They are unsigned 32-bit integers in int64 tensors or, except for at least one, Python integers.
    """
    c0, c1, c2, c3 = counter
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # wraps to the bits of the unsigned product
        c0, c1 = (b >> 32 & _WORD) ^ c1 ^ seed, b & _WORD
        c2, c3 = (a >> 32 & _WORD) ^ c3 ^ step, a & _WORD
        seed, step = seed + 0x9E3779B9 & _WORD, step + 0xBB67AE85 & _WORD
    return c0, c1, c2, c3


def dropout_mask(segment, row, columns, *, rng, probability, level, layer, site, head=0):
    """Return the multipliers of dropout, 0 or 1 / (1 - probability), (..., columns) float32, as csrc/philox.h says.

    `segment`, `row` and `head` are integers (...), which broadcast against each other.
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


def segment_dropout(x, offsets, *, probability, rng, level=0, layer=0, site=0, segment_base=0):
    if rng is None or probability == 0:
        return x
    segment, row = segments_and_rows(offsets)
    place = {"level": level, "layer": layer, "site": site}
    return x * dropout_mask(segment + segment_base, row, x.shape[1], rng=rng, probability=probability, **place)


def segment_attention(q, k, v, offsets, *, scale=None, dropout=0.0, rng=None, level=0, layer=0, segment_base=0):
    scale = max(1, q.shape[2]) ** -0.5 if scale is None else scale
    head, parts = torch.arange(q.shape[1], device=q.device)[:, None], [q[:0]]
    for g, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        queries, keys, values = (x[begin:end].transpose(0, 1) for x in (q, k, v))  # (H, L, D)
        weights = torch.softmax(queries * scale @ keys.mT, -1)
        if rng is not None and dropout > 0:
            place = {"level": level, "layer": layer, "site": ATTENTION_WEIGHTS, "head": head}
            number, row = torch.tensor(segment_base + g, device=q.device), torch.arange(end - begin, device=q.device)
            weights = weights * dropout_mask(number, row, end - begin, rng=rng, probability=dropout, **place)
        parts.append((weights @ values).transpose(0, 1))
    return torch.cat(parts)


def kmeans_assign(points, centroids):
    """Return the nearest centroid of every point, ties to the lowest index, and its squared distance, (B, N)."""
    squared = (points[:, :, None] - centroids[:, None]).square().sum(-1)  # (problems, points, clusters)
    labels = squared.argmin(-1)  # the first of equals
    return labels.int(), squared.gather(-1, labels[..., None])[..., 0]


def kmeans_init(points, k, seeds):
    """See `ops.kmeans_init`."""

    def draw(seed, round, candidate):
        counter = torch.tensor([candidate]), round, 0, 255 << 24
        low, high, *_ = philox(seed & _WORD, seed >> 32 & _WORD, *counter)
        return int(high) << 32 | int(low)

    def greedy(x, seed):
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

    rows = [greedy(x, seed) for x, seed in zip(points, seeds.tolist(), strict=True)]
    return torch.tensor(rows, dtype=torch.int32, device=points.device).reshape(len(points), k)


def kmeans(points, start, iterations, tolerance):
    """Return centroids, labels, inertia and iterations of `ops.kmeans`, started from centroids `start`."""

    def assign(x, centroids):
        labels, squared = kmeans_assign(x[None], centroids[None])
        empty = labels[0].long().bincount(minlength=len(centroids)) == 0
        if not empty.any() or not squared.any():
            return labels[0], squared[0]
        centroids[int(empty.int().argmax())] = x[squared[0].argmax()]
        return assign(x, centroids)

    def solve(x, centroids):
        settled, steps, moved = False, 0, math.inf
        labels = None
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


def sort_by_cluster(labels, k):
    """Return the rows sorted by cluster, (B, N), and where clusters begin and end, (B, k + 1); see `ops.KMeans`."""
    sizes = labels.new_zeros(len(labels), k).scatter_add_(1, labels.long(), torch.ones_like(labels))
    offsets = torch.nn.functional.pad(sizes.cumsum(1), (1, 0))
    return labels.argsort(dim=1, stable=True).int(), offsets.int()


def segment_encoder(states, columns, rows, offsets, parameters, *, rng=None, **values):
    """See `ops.segment_encoder`; computes in the dtype of its tensors, whatever its `precision`."""
    width, layers, heads, feedforward, project, pool, dropout, level, segment_base, *_ = EncoderOptions(**values)
    (subsets, count), clusters = rows.shape, offsets.shape[1] - 1
    inputs = states.shape[1] + columns.shape[2]
    shapes = ops.encoder_shapes(inputs, width, layers, feedforward, project)
    pieces = parameters.split([math.prod(shape) for shape in shapes])
    tensors = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    projection, stack = tensors[: 2 * project], tensors[2 * project :]
    parts = []
    for cell, (policy, s) in enumerate(itertools.product(range(len(columns)), range(subsets))):
        segments, base = offsets[s], segment_base + cell * clusters
        index = rows[s, : segments[-1]].long()
        x = torch.cat([states[index], columns[policy, index]], 1)
        if projection:
            x = functional.linear(x, *projection).relu()
        for layer in range(layers):
            w = stack[12 * layer : 12 * layer + 12]
            place = {"rng": rng, "level": level, "layer": layer, "segment_base": base}
            q, k, v = functional.linear(x, w[0], w[1]).view(len(x), 3, heads, width // heads).unbind(1)
            x1 = segment_attention(q, k, v, segments, dropout=dropout, **place).reshape(len(x), width)
            place["probability"] = dropout
            x1 = segment_dropout(functional.linear(x1, w[2], w[3]), segments, site=AFTER_ATTENTION, **place)
            x = functional.layer_norm(x + x1, (width,), w[4], w[5])
            x1 = segment_dropout(functional.linear(x, w[6], w[7]).relu(), segments, site=INSIDE_FEED_FORWARD, **place)
            x1 = segment_dropout(functional.linear(x1, w[8], w[9]), segments, site=AFTER_FEED_FORWARD, **place)
            x = functional.layer_norm(x + x1, (width,), w[10], w[11])
        parts.append(segment_mean(x, segments) if pool else functional.pad(x, (0, 0, 0, count - len(x))))
    shape = len(columns), subsets, clusters if pool else count, width
    return torch.stack(parts).view(shape) if parts else columns.new_zeros(shape)
