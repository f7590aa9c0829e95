"""The scoring model: a hierarchical transformer encoder over clustered (state, action) rows (paper section 3.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from .. import ops
from ..ops import composed
from ..ops.segment_encoder_blocks import Arena, segment_encoder_blocks
from ..runtime import devices
from ..runtime.devices import without_autocast
from .config import Config
from .initial_weights import EncoderLayer, MLPLayer, Stack, linear_layer, mlp

LOW, HIGH = 0, 1
_AT_ONCE = 8  # policies whose moments a GPU computes at a time
_PLAIN: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever torch's defaults are
_EXACT: dict[str, Any] = {"dtype": torch.float64, "device": "cpu"}


class Tokens(NamedTuple):
    """Input of an encoder: token t of policy p and subset s is [states[rows[s, t]], columns[p, rows[s, t]]].

    Attributes:
        states: (U, dim_s) states.
        columns: (P, U, dim_c) columns.
        rows: (S, N) int32 indices of states, sorted by cluster.
        offsets: (S, K + 1) int32 offsets of the clusters in `rows`.
    """

    states: Tensor
    columns: Tensor
    rows: Tensor
    offsets: Tensor


class Weights(NamedTuple):
    """Parameters of a model, flat and with batch norm folded into the projection; row b is for the policies of block b.

    Attributes:
        low: (B, n) projection and layers of the low encoder.
        high: (B, m) layers of the high encoder.
        score: (B, h) class token, or weights and biases of the score.
        blocks: Number of policies in each block; empty for one block of all.
        arena: Memory for activations of a training step on the CPU, or None.
    """

    low: Tensor
    high: Tensor
    score: Tensor
    blocks: tuple[int, ...] = ()
    arena: Arena | None = None

    @property
    def flat(self) -> Tensor:
        """Return all parameters of each block, (B, n + m + h)."""
        return torch.cat(self[:3], 1)

    def apart(self, blocks: tuple[int, ...], arena: Arena | None) -> Weights:
        """Return leaves of the same values, whose gradients are those of each block apart."""
        low, high, score = (part.detach().expand(len(blocks), -1).requires_grad_() for part in self[:3])
        return Weights(low, high, score, blocks, arena)

    def score_of(self, policies: int) -> Tensor:
        """Return the parameters of the score for each policy, (P, h)."""
        counts = self.blocks or [policies]
        return _joined([row.expand(count, -1) for row, count in zip(self.score, counts, strict=True)])


class _Encoding(NamedTuple):
    """What both encoders need besides their tokens."""

    model: ScoringModel
    weights: Weights
    rng: Tensor | None
    precision: str
    first_policy: int

    def encode(self, level: int, tokens: Tokens, long_tiles: int, *, pool: bool = True) -> Tensor:
        """Return the vectors of an encoder, (P, S, K, E), or (P, S, N, E) not pooled."""
        config, weights = self.model.config, self.weights
        segments = tokens.offsets[:, 1:].numel()  # of a policy
        options: dict[str, Any] = {
            "width": config.width,
            "layers": config.low_layers if level == LOW else config.high_layers,
            "feedforward": config.low_feedforward if level == LOW else config.high_feedforward,
            "project": level == LOW,
            "pool": pool,
            "dropout": config.dropout if self.model.training else 0.0,
            "rng": self.rng,
            "level": level,
        }
        encode: Callable[..., Tensor] = composed.mlp_encoder
        if config.encoder == "transformer":
            encode = ops.segment_encoder
            options["heads"] = config.low_heads if level == LOW else config.high_heads
            options |= {"precision": self.precision, "long_tiles": long_tiles}
        base, parameters = self.first_policy * segments, weights.low if level == LOW else weights.high
        if weights.arena is not None:
            return segment_encoder_blocks(
                *tokens, parameters, blocks=weights.blocks, arena=weights.arena, segment_base=base, **options
            )
        blocks, begin = [], 0
        for own, count in zip(parameters, weights.blocks or [len(tokens.columns)], strict=True):
            part = tokens._replace(columns=tokens.columns[begin : begin + count])
            blocks.append(encode(*part, own, segment_base=base + begin * segments, **options))
            begin += count
        return _joined(blocks)


class ScoringModel(nn.Module):
    """Hierarchical encoder that scores policies on clustered states, one score for each (policy, subset).

    All layers of an encoder start as copies of one, as in the released code.

    Args:
        input_dim: Width of a state and of a policy's columns there, together.
        config: Shapes and options.
        seed: Seed of the initial weights. All but an MLP's layers equal those of torch's modules with torch's global
            generator so seeded.

    Attributes:
        config: Shapes and options.
    """

    low: Stack | nn.ModuleList
    high: Stack | nn.ModuleList
    norm: nn.BatchNorm1d | None

    def __init__(self, input_dim: int, config: Config, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        width = config.width
        # Not torch's global generator, from which the caller and other threads draw.
        generator = torch.Generator().manual_seed(seed)
        self.projection = linear_layer(input_dim, width, generator)
        self.norm = None
        if config.input_norm == "batch":
            self.norm = nn.BatchNorm1d(width, **_PLAIN)
            self.rows = _RowMoments(input_dim)
        if config.encoder == "transformer":
            self.low = Stack(EncoderLayer(width, config.low_feedforward, generator), config.low_layers)
            self.high = Stack(EncoderLayer(width, config.high_feedforward, generator), config.high_layers)
        else:
            self.low = mlp(width, config.low_feedforward, config.low_layers, generator)
            self.high = mlp(width, config.high_feedforward, config.high_layers, generator)
        if config.class_token:
            self.class_token = nn.Parameter(torch.randn(width, generator=generator, **_PLAIN) * 0.02)
        else:
            self.score = linear_layer(width, 1, generator)
        if config.score == "sort":
            self.sorted_score = linear_layer(config.clusters, 1, generator)

    def train(self, mode: bool = True) -> ScoringModel:
        """Switch to training or evaluation mode.

        In evaluation mode, batch norm uses the moments of all rows of the training under the final weights. Its own
        running moments are of earlier weights, which matters where the mean of a column is large.
        """
        if self.norm is not None and self.training and not mode:
            self.rows.settle(self.projection, self.norm)
        return super().train(mode)

    def forward(
        self,
        states: Tensor,
        columns: Tensor,
        rows: Tensor,
        offsets: Tensor,
        rng: Tensor | None = None,
        precision: str | None = None,
        weights: Weights | None = None,
        first_policy: int = 0,
        long_tiles: int = -1,
    ) -> Tensor:  # (P, S) float32
        """Return scores of P policies on S subsets; with dropout and the batch norm of this batch in training mode.

        Args:
            states: (U, dim_s) float32 states.
            columns: (P, U, dim_c) float32 columns.
            rows: (S, N) int32 indices of states, sorted by cluster.
            offsets: (S, K + 1) int32 offsets of the clusters in `rows`.
            rng: (2,) int64 seed and step of dropout, needed in training mode.
            precision: Operands of matrix products, "fp32" or "bf16"; by default that of the config.
            weights: Parameters by blocks of policies, for training on a part of a batch that `observe` has seen.
            first_policy: Place of the first policy in that batch, for its dropout masks.
            long_tiles: See `ops.segment_encoder`; `Subsets.long_tiles`.
        """
        precision = precision or (self.config.training_precision if self.training else self.config.precision)
        with without_autocast(states.device):
            if weights is None:
                moments = None
                if self.training and self.norm is not None:
                    moments = row_moments(states, columns, rows)
                    self.observe(moments)
                weights = self.weights(moments)
            encoding = _Encoding(self, weights, rng, precision, first_policy)
            clusters = encoding.encode(LOW, Tokens(states, columns, rows, offsets), long_tiles)  # (P, S, K, E)
            return self._score(clusters, offsets, encoding)

    def weights(self, moments: Moments | None = None) -> Weights:
        """Return the parameters as encoders and score read them, for all policies as one block.

        Args:
            moments: Moments of the batch in training mode, which batch norm uses.
        """
        low = [*self._folded_projection(moments), *_in_order(self.low)]
        score = [self.class_token] if self.config.class_token else [self.score.weight, self.score.bias]
        if self.config.score == "sort":
            score += [self.sorted_score.weight, self.sorted_score.bias]
        return Weights(_flat(low)[None], _flat(_in_order(self.high))[None], _flat(score)[None])

    def _score(self, clusters: Tensor, offsets: Tensor, encoding: _Encoding) -> Tensor:
        config = self.config
        policies, subsets, count, width = clusters.shape
        parts = [width, *([] if config.class_token else [1]), *([count, 1] if config.score == "sort" else [])]
        weight, *more = encoding.weights.score_of(policies).split(parts, 1)
        filled = offsets[:, 1:] > offsets[:, :-1]  # (S, K)
        index = torch.arange(subsets * count, dtype=torch.int32, device=filled.device).view(subsets, count)
        vectors = clusters.reshape(policies, subsets * count, width)
        sizes = filled.sum(1, dtype=torch.int32)
        if config.class_token:
            vectors = torch.cat([vectors, weight[:, None]], 1)
            index = functional.pad(index, (1, 0), value=subsets * count)
            filled = functional.pad(filled, (1, 0), value=True)
            sizes = sizes + 1
        bounds = functional.pad(sizes.cumsum(0, dtype=torch.int32), (1, 0))
        high = Tokens(vectors.new_empty(vectors.shape[1], 0), vectors, _rows_at(index, filled)[None], bounds[None])
        pool = config.score == "mean" and not config.class_token
        most = index.shape[1]  # tokens of a segment
        long_tiles = subsets * -(-most // 128) if most > 128 else 0
        encoded = encoding.encode(HIGH, high, long_tiles, pool=pool)[:, 0]  # (P, S, E), or (P, R, E) not pooled
        if config.class_token:
            return encoded[:, bounds[:-1].long()].mean(-1)
        scores = _linear(encoded, weight, more[0])  # (P, S), or (P, R)
        return scores if pool else _linear(_sort_and_spread(scores, filled), *more[1:])

    @torch.no_grad()
    def observe(self, moments: Moments) -> None:
        """Add the moments of a training batch to those that evaluation mode uses."""
        if self.norm is None:
            return
        mean, covariance, count = moments
        unbias = count / (count - 1).clamp(min=1)
        wide, bias = self.projection.weight.double(), self.projection.bias
        momentum = cast(float, self.norm.momentum)
        unbiased = ((wide @ covariance) * wide).sum(1) * unbias
        running_mean, running_var = cast(Tensor, self.norm.running_mean), cast(Tensor, self.norm.running_var)
        running_mean.lerp_((wide @ mean + bias.double()).to(bias.dtype), momentum)
        running_var.lerp_(unbiased.to(bias.dtype), momentum)
        cast(Tensor, self.norm.num_batches_tracked).add_(1)
        self.rows.add(mean, covariance * unbias)

    def _folded_projection(self, moments: Moments | None) -> tuple[Tensor, Tensor]:
        """Return projection and batch norm as one affine map, exact by the moments of the rows."""
        weight, bias = self.projection.weight, self.projection.bias
        if self.norm is None:
            return weight, bias
        wide = weight.double()
        if self.training and moments is not None:
            norm_variance = ((wide @ moments.covariance) * wide).sum(1)
            shift = -(wide @ moments.mean)
        else:
            running_mean, running_var = cast(Tensor, self.norm.running_mean), cast(Tensor, self.norm.running_var)
            norm_variance = running_var.double()
            shift = bias.double() - running_mean.double()
        scale = self.norm.weight.double() * torch.rsqrt(norm_variance + self.norm.eps)
        folded_bias = self.norm.bias.double() + scale * shift
        return (scale[:, None] * wide).to(weight.dtype), folded_bias.to(bias.dtype)


class _RowMoments(nn.Module):
    """Mean and covariance of the rows [state, columns], averaged over all batches."""

    count: Tensor
    mean: Tensor
    covariance: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), **_EXACT))
        self.register_buffer("mean", torch.zeros(dim, **_EXACT))
        self.register_buffer("covariance", torch.zeros(dim, dim, **_EXACT))

    def add(self, mean: Tensor, covariance: Tensor) -> None:
        self.count += 1
        self.mean += (mean - self.mean) / self.count
        self.covariance += (covariance - self.covariance) / self.count

    @torch.no_grad()
    def settle(self, projection: nn.Linear, norm: nn.BatchNorm1d) -> None:
        """Write the moments of the projected rows to the norm, if there were any."""
        weight, seen = projection.weight.double(), self.count > 0
        running_mean, running_var = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
        mean = weight @ self.mean + projection.bias.double()
        variance = ((weight @ self.covariance) * weight).sum(1)
        running_mean.copy_(torch.where(seen, mean, running_mean.double()))
        running_var.copy_(torch.where(seen, variance, running_var.double()))


class Moments(NamedTuple):
    """Moments of rows [state, columns] of width D, in float64.

    Attributes:
        mean: (D,) mean.
        covariance: (D, D) biased covariance.
        row_count: () number of rows.
    """

    mean: Tensor
    covariance: Tensor
    row_count: Tensor


def row_moments(states: Tensor, columns: Tensor, rows: Tensor) -> Moments:
    """Return the moments of the rows of all policies and subsets.

    Args:
        states: (U, dim_s) states.
        columns: (P, U, dim_c) columns.
        rows: (S, N) indices of states.
    """
    return merge_moments(states, rows, part_moments(states, columns, rows, [slice(None)]))


def part_moments(states: Tensor, columns: Tensor, rows: Tensor, blocks: Sequence[slice]) -> Tensor:
    """Return what `merge_moments` needs of some of the policies, (B, 1 + dim_c + D dim_c) float64.

    These are, of each part, the number of rows, their mean columns, and sums of products of centred rows and columns.

    Args:
        states: (U, dim_s) states.
        columns: (P, U, dim_c) columns.
        rows: (S, N) indices of states.
        blocks: Which policies are in each part. On a GPU each policy is one, so that few kernels do all.
    """
    index = rows.reshape(-1).long()
    drawn = states[index].double()
    drawn -= drawn.mean(0)
    if devices.runs_ahead(columns.device):
        # Always as many policies at a time, the last one repeatedly, so that libraries choose the same kernel, and a
        # policy's moments have the same bits, whatever other policies this process has.
        starts = range(0, len(columns), _AT_ONCE)
        policy = torch.arange(len(starts) * _AT_ONCE, device=index.device).clamp(max=len(columns) - 1)[:, None]
        parts = [_policy_moments(drawn, columns[policy[first : first + _AT_ONCE], index]) for first in starts]
        parts = [torch.cat(parts)[: len(columns)]] if parts else []
    else:
        parts = [_block_moments(drawn, columns[policies][:, index])[None] for policies in blocks]
    width = columns.shape[2]
    return torch.cat([drawn.new_empty(0, 1 + width + (drawn.shape[1] + width) * width), *parts])


def _policy_moments(drawn: Tensor, taken: Tensor) -> Tensor:
    """Return the moments of each policy.

    Args:
        drawn: (T, dim_s) centred states.
        taken: (P, T, dim_c) columns.
    """
    centred = taken.double()
    mean = centred.mean(1)
    centred -= mean[:, None]
    count = torch.full_like(mean[:, :1], taken.shape[1])
    return torch.cat([count, mean, (drawn.T @ centred).flatten(1), (centred.mT @ centred).flatten(1)], 1)


def _block_moments(drawn: Tensor, taken: Tensor) -> Tensor:
    """Return the moments of one part, of a policy at a time.

    Args:
        drawn: (T, dim_s) centred states.
        taken: (P, T, dim_c) columns.
    """
    mean = taken.double().mean((0, 1))
    across, own = mean.new_zeros(taken.shape[1:]), mean.new_zeros(len(mean), len(mean))
    for policy in taken:
        centred = policy.double() - mean
        across += centred
        own += centred.T @ centred
    count = mean.new_tensor([taken.shape[0] * taken.shape[1]])
    return torch.cat([count, mean, (drawn.T @ across).flatten(), own.flatten()])


def merge_moments(states: Tensor, rows: Tensor, blocks: Tensor) -> Moments:
    """Return the moments of the rows of all policies.

    Args:
        states: (U, dim_s) states.
        rows: (S, N) indices of states.
        blocks: (B, 1 + dim_c + D dim_c) results of `part_moments` of all policies.
    """
    drawn = states[rows.reshape(-1).long()].double()
    state_mean = drawn.mean(0)
    drawn -= state_mean
    total, dim = len(drawn), drawn.shape[1]
    width = (math.isqrt((dim + 1) ** 2 + 4 * (blocks.shape[1] - 1)) - dim - 1) // 2
    counts, means, cross, own = blocks.split([1, width, dim * width, width * width], 1)
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    apart = means - mean
    cross = cross.sum(0).view(dim, width) / count  # states are centred, so means of parts do not matter
    own = (own.sum(0).view(width, width) + (counts * apart).T @ apart) / count
    top = torch.cat([drawn.T @ drawn / total, cross], 1)
    bottom = torch.cat([cross.T, own], 1)
    return Moments(torch.cat([state_mean, mean]), torch.cat([top, bottom]), count)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return (P, S), the products of x (P, S, E) with the weights (P, E) of each policy, plus its bias (P, 1)."""
    return (x * weight[:, None]).sum(-1) + bias


def _rows_at(index: Tensor, filled: Tensor) -> Tensor:
    """Return index[filled]; on a GPU the others follow, since counting these would wait for it."""
    if not devices.runs_ahead(filled.device):
        return index[filled]
    return torch.empty_like(index).flatten().index_copy_(0, composed.places(~filled), index.flatten())


def _sort_and_spread(scores: Tensor, filled: Tensor) -> Tensor:
    """Return the scores (P, R) of filled clusters (S, K), sorted and spread evenly over K places, (P, S, K)."""
    count = filled.shape[1]
    column = (filled.flatten().cumsum(0) - 1).clamp(min=0)
    ordered = scores[:, column].view(-1, *filled.shape).masked_fill(~filled, torch.inf).sort(2).values
    last = filled.sum(1, keepdim=True, dtype=torch.float32) - 1
    place = torch.arange(count, device=filled.device)
    step = last / max(count - 1, 1)
    place = torch.where(place < count // 2, step * place, last - step * (count - 1 - place))  # torch.linspace(0, last)
    return ordered.gather(2, place.round().long().expand(len(scores), -1, -1))


def _joined(blocks: list[Tensor]) -> Tensor:
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def _in_order(encoder: Stack | nn.ModuleList) -> list[Tensor]:
    """Return the parameters of all layers in the order that their operator reads."""
    layers = cast(list[EncoderLayer | MLPLayer], encoder.layers if isinstance(encoder, Stack) else encoder)
    return [parameter for layer in layers for parameter in layer.in_order()]


def _flat(parameters: Iterable[Tensor]) -> Tensor:
    return torch.cat([parameter.reshape(-1) for parameter in parameters])
