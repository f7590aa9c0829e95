"""The scoring model: a hierarchical transformer encoder over clustered (state, action) rows (paper section 3.1)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .. import ops
from ..ops import composed
from ..ops.segment_encoder_blocks import Arena, segment_encoder_blocks
from ..runtime import devices
from ..runtime.devices import without_autocast
from .config import Config
from .initial_weights import EncoderLayer, Linear, mlp, stack
from .input_norm import InputNorm, Moments

LEVELS = LOW, HIGH = "low", "high"


class Weights(NamedTuple):
    """Parameters of a model, flat and with batch norm folded into the projection; row b is for block b."""

    low: Tensor  # (B, n) projection and layers of the low encoder
    high: Tensor  # (B, m) layers of the high encoder
    score: Tensor  # (B, h) weights and biases of the score
    blocks: tuple[int, ...] = ()  # policies in each block; none for one block of all
    arena: Arena | None = None  # memory for activations of a training step on the CPU

    def apart(self, blocks: tuple[int, ...], arena: Arena | None) -> Weights:
        """Return leaves of the same values, whose gradients are those of each block apart."""
        low, high, score = (part.detach().expand(len(blocks), -1).requires_grad_() for part in self[:3])
        return Weights(low, high, score, blocks, arena)


class ScoringModel(nn.Module):
    """Hierarchical encoder that scores policies on clustered states, one score for each (policy, subset).

    All layers of an encoder start as copies of one, as in the released code.

    Args:
        input_dim: Width of a state and of a policy's columns there, together.
        config: Shapes and options.
        seed: Seed of the initial weights. All but an MLP's layers equal those of torch's modules with torch's global
            generator so seeded.
    """

    def __init__(self, input_dim: int, config: Config, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        width = config.width
        # Not torch's global generator, from which the caller and other threads draw.
        generator = torch.Generator().manual_seed(seed)
        self.projection = Linear(input_dim, width, generator)
        self.norm = InputNorm(width, input_dim)
        layers = stack if config.encoder == "transformer" else mlp
        self.low = layers(width, config.low_feedforward, config.low_layers, generator)
        self.high = layers(width, config.high_feedforward, config.high_layers, generator)
        self.score = Linear(width, 1, generator)

    def train(self, mode: bool = True) -> ScoringModel:
        """Switch to training or evaluation mode; see `InputNorm.settle`."""
        if self.training and not mode:
            self.norm.settle(self.projection)
        return super().train(mode)

    def forward(
        self,
        states: Tensor,  # (U, dim_s)
        columns: Tensor,  # (P, U, dim_c)
        rows: Tensor,  # (S, N) int32, sorted by cluster
        offsets: Tensor,  # (S, K + 1) int32
        rng: Tensor | None = None,
        precision: str | None = None,
        weights: Weights | None = None,
        first_policy: int = 0,
        long_tiles: int = -1,
    ) -> Tensor:  # (P, S) float32
        """Return scores of P policies on S subsets; in training mode with dropout.

        Args:
            rng: (2,) int64 seed and step of dropout, needed in training mode.
            precision: Operands of matrix products, "fp32" or "bf16"; by default fp32 in training, else the config's.
            weights: Parameters by blocks of policies, see `weights`, needed in training mode.
            first_policy: Place of the first policy in a training batch, for its dropout masks.
            long_tiles: See `ops.segment_encoder`; `Subsets.long_tiles`.
        """
        assert weights is not None or not self.training, "weights of the batch are needed in training mode"
        precision = precision or ("fp32" if self.training else self.config.precision)
        with without_autocast(states.device):
            weights = self.weights() if weights is None else weights
            encode: Callable[..., Tensor] = functools.partial(
                self._encode, weights=weights, rng=rng, precision=precision, first_policy=first_policy
            )
            clusters = encode(LOW, states, columns, rows, offsets, long_tiles=long_tiles)  # (P, S, K, E)
            return self._score(clusters, offsets, weights, encode)

    def weights(self, moments: Moments | None = None) -> Weights:
        """Return the parameters for all policies as one block; batch norm uses the moments of a training batch."""
        projection = self.norm.fold(self.projection, moments)
        low, high = [*projection, *_in_order(self.low)], _in_order(self.high)
        flat = nn.utils.parameters_to_vector
        return Weights(flat(low)[None], flat(high)[None], flat(self.score.parameters())[None])

    def _encode(
        self,
        level: str,
        states: Tensor,
        columns: Tensor,
        rows: Tensor,
        offsets: Tensor,
        *,
        weights: Weights,
        first_policy: int,
        **options: Any,
    ) -> Tensor:
        """Return the vectors of an encoder, (P, S, K, E)."""
        config, parameters = self.config, getattr(weights, level)
        segments = offsets[:, 1:].numel()  # of a policy
        base = first_policy * segments
        options |= {
            "width": config.width,
            **{name: getattr(config, f"{level}_{name}") for name in ("layers", "heads", "feedforward")},
            "project": level == LOW,
            "dropout": config.dropout if self.training else 0.0,
            "level": LEVELS.index(level),
        }
        if weights.arena is not None:
            return segment_encoder_blocks(
                states, columns, rows, offsets, parameters,
                blocks=weights.blocks, arena=weights.arena, segment_base=base, **options,
            )  # fmt: skip
        encode: Callable[..., Tensor] = ops.segment_encoder if config.encoder == "transformer" else composed.mlp_encoder
        encoded, begin = [], 0
        for own, count in zip(parameters, weights.blocks or [len(columns)], strict=True):
            some = columns[begin : begin + count]
            encoded.append(encode(states, some, rows, offsets, own, segment_base=base + begin * segments, **options))
            begin += count
        return _joined(encoded)

    def _score(
        self, clusters: Tensor, offsets: Tensor, weights: Weights, encode: Callable[..., Tensor]
    ) -> Tensor:  # (P, S)
        policies, subsets, count, width = clusters.shape
        blocks = zip(weights.score, weights.blocks or [policies], strict=True)
        weight, bias = _joined([row.expand(members, -1) for row, members in blocks]).split([width, 1], 1)
        filled = offsets[:, 1:] > offsets[:, :-1]  # (S, K)
        index = torch.arange(subsets * count, dtype=torch.int32, device=filled.device).view(subsets, count)
        vectors = clusters.reshape(policies, subsets * count, width)
        sizes = filled.sum(1, dtype=torch.int32)
        bounds = functional.pad(sizes.cumsum(0, dtype=torch.int32), (1, 0))
        encoded = encode(
            HIGH,
            vectors.new_empty(vectors.shape[1], 0),
            vectors,
            _rows_at(index, filled)[None],
            bounds[None],
            long_tiles=subsets * -(-count // 128) if count > 128 else 0,
        )[:, 0]  # (P, S, E)
        return (encoded * weight[:, None]).sum(-1) + bias


def _rows_at(index: Tensor, filled: Tensor) -> Tensor:
    """Return index[filled]; on a GPU the others follow, since counting these would wait for it."""
    if not devices.runs_ahead(filled.device):
        return index[filled]
    return torch.empty_like(index).flatten().index_copy_(0, composed.places(~filled), index.flatten())


def _joined(blocks: list[Tensor]) -> Tensor:
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def _in_order(layers: nn.ModuleList) -> list[Tensor]:
    """Return the parameters of all layers in the order that their operator reads."""
    return [
        parameter
        for layer in layers
        for parameter in (layer.in_order() if isinstance(layer, EncoderLayer) else layer.parameters())
    ]
