"""Actors read from files: multilayer perceptrons, with what libraries put before and behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributions as dist
from torch.nn import functional as F

from .output import Output, one_hot
from .policy import Policy

# Activations of this many rows stay in cache: 1.1 to 1.6 times as fast as whole batches. Actors that share an
# architecture gain nothing from batched products over them one by one, so each is evaluated alone.
_ROWS = 1024
LARGEST = 1 - 2**-23  # below 1 in float32, so that the inverse of tanh is finite

ACTIVATIONS = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "selu": F.selu,
    "leaky_relu": F.leaky_relu,
    "sigmoid": torch.sigmoid_,
    "softplus": F.softplus,
    "identity": lambda x: x,
}
HEADS = ("action", "logits", "values")

Layer = tuple[Tensor, Tensor]  # weight (out, in), bias (out,)


@dataclass(frozen=True)
class Standardisation:
    """What a policy does to states first: (state - mean) / std, then clipped to ±clip."""

    mean: Tensor  # (dim_s,) float64
    std: Tensor  # (dim_s,) float64
    clip: float = math.inf

    def __call__(self, states: Tensor) -> Tensor:
        # In float64, since a mean that is large beside the deviation would leave float32 few digits.
        return ((states.double() - self.mean) / self.std).clamp_(-self.clip, self.clip).float()


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest action of every column."""

    low: Tensor  # (dim_a,) float32
    high: Tensor  # (dim_a,) float32

    def clip(self, actions: Tensor) -> Tensor:
        return actions.clamp(self.low, self.high)

    def from_unit(self, actions: Tensor) -> Tensor:
        """Actions of [-1, 1] to [low, high]."""
        return self.low + 0.5 * (actions + 1) * (self.high - self.low)


class Actor(Policy):
    """A multilayer perceptron from states to actions.

    Deterministic, the action is the last layer's output, through tanh if `squash`, from [-1, 1] to `scale`, clipped
    to `clip`. With `stochastic=True` it is a normal of that output and standard deviation exp(clip(log_std)), through
    the same tanh and scale; the columns are then the deterministic action and the standard deviation of the normal
    (in `scale`'s units where there is no tanh between).

    Args:
        name: names it in rankings and errors.
        layers: weight (out, in) and bias (out,) of every layer, float32, the last one's output is the mean.
        activation: between layers, one of `ACTIVATIONS`.
        squash: tanh on the action.
        log_std: log standard deviations: the layer beside the last one that gives them, or themselves (dim_a,).
        log_std_bounds: they are clipped to.
        stochastic: act by the distribution; needs `log_std`.
        standardisation: of states.
        scale: where actions of [-1, 1] are stretched to.
        clip: where actions are clipped to.
        head: what the last layer gives: "action", or of discrete actions "logits" (the output is their
            probabilities) or "values" (the greatest is taken).
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[Layer],
        *,
        activation: str = "relu",
        squash: bool = True,
        log_std: Layer | Tensor | None = None,
        log_std_bounds: tuple[float, float] = (-20, 2),
        stochastic: bool = False,
        standardisation: Standardisation | None = None,
        scale: Bounds | None = None,
        clip: Bounds | None = None,
        head: str = "action",
    ):
        if stochastic and log_std is None and head == "action":
            raise ValueError(f"policy {name!r} has no log_std layer, so it cannot be stochastic")
        for what, value, known in (("activation", activation, ACTIVATIONS), ("head", head, HEADS)):
            if value not in known:
                raise ValueError(f"policy {name!r}: {what} {value!r}, expected one of {list(known)}")
        self.name, self.head = name, head
        self.activation, self.squash, self.stochastic = activation, squash, stochastic and head == "action"
        self.standardisation, self.scale, self.clip = standardisation, scale, clip
        self._hidden, self._mean = list(layers[:-1]), layers[-1]
        self._log_std, self._log_std_bounds = log_std, log_std_bounds
        self._check_widths()

    @property
    def state_dim(self) -> int:
        return (self._hidden or [self._mean])[0][0].shape[1]

    @property
    def action_dim(self) -> int:
        return self._mean[0].shape[0]

    def _check_widths(self) -> None:
        for what, key, width in [
            ("standardisation", "mean", self.state_dim),
            ("standardisation", "std", self.state_dim),
            ("scale", "low", self.action_dim),
            ("scale", "high", self.action_dim),
            ("clip", "low", self.action_dim),
            ("clip", "high", self.action_dim),
        ]:
            part = getattr(self, what)
            if part is not None and getattr(part, key).shape != (width,):
                shape = tuple(getattr(part, key).shape)
                raise ValueError(f"policy {self.name!r}: {what}'s {key} has shape {shape}, expected ({width},)")

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        if states.shape[1] != self.state_dim:
            raise ValueError(f"policy {self.name!r} reads {self.state_dim} state columns, got {states.shape[1]}")
        mean, log_std = self._last_layers(states)
        if self.head == "logits":
            return Output("discrete", mean.softmax(1))
        if self.head == "values":
            return Output("discrete", one_hot(mean.argmax(1), self.action_dim))
        action = self._to_range(mean.tanh() if self.squash else mean)
        if log_std is None:
            return Output("action", action)
        std = log_std.clamp_(*self._log_std_bounds).exp_()
        if self.scale is not None and not self.squash:
            mean, std = self.scale.from_unit(mean), std * (self.scale.high - self.scale.low) / 2
        normal = dist.Normal(mean, std, validate_args=False)
        return Output("gaussian", action, std, self._squashed(normal) if self.squash else normal)

    def _last_layers(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """(N, dim_a) each: the last layer's output, and log standard deviations if stochastic."""
        mean = states.new_empty(len(states), self.action_dim)
        log_std = torch.empty_like(mean) if self.stochastic else None
        for first in range(0, len(states), _ROWS):
            rows = slice(first, first + _ROWS)
            hidden = states[rows] if self.standardisation is None else self.standardisation(states[rows])
            for layer in self._hidden:
                hidden = ACTIVATIONS[self.activation](_linear(hidden, layer))
            mean[rows] = _linear(hidden, self._mean)
            if log_std is not None:
                log_std[rows] = self._log_std if isinstance(self._log_std, Tensor) else _linear(hidden, self._log_std)
        return mean, log_std

    def _to_range(self, actions: Tensor) -> Tensor:
        if self.scale is not None:
            actions = self.scale.from_unit(actions)
        return actions if self.clip is None else self.clip.clip(actions)

    def _squashed(self, normal: dist.Normal) -> dist.Distribution:
        transforms: list[dist.Transform] = [dist.TanhTransform()]
        if self.scale is not None:
            low, high = self.scale.low, self.scale.high
            transforms.append(dist.AffineTransform((low + high) / 2, (high - low) / 2))
        return dist.TransformedDistribution(normal, transforms, validate_args=False)

    def log_prob(self, states: Tensor, actions: Tensor, source: Tensor | None = None) -> Tensor:
        """(N,): log density of actions (N, dim_a), those on the bounds of a squashed actor taken just inside; see
        `Policy.log_prob`.
        """
        if self.squash:
            unit = torch.tensor(LARGEST, dtype=torch.float32, device="cpu")
            low, high = (-unit, unit) if self.scale is None else map(self.scale.from_unit, (-unit, unit))
            actions = actions.clamp(low, high)
        return super().log_prob(states, actions, source)


def _linear(x: Tensor, layer: Layer) -> Tensor:
    weight, bias = layer
    return torch.addmm(bias, x, weight.t())
