"""Multilayer perceptrons read from files, with the standardisation, squashing and clipping that libraries add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributions as dist
from torch.nn import functional as F

from ... import ops
from .output import Bounds, Output, one_hot
from .policy import Policy

_ROWS = 4096  # of a batch, whose activations stay in cache
LARGEST = 1 - 2**-23  # below 1 in float32, so that the inverse of tanh is finite

ACTIVATIONS = {
    **{"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_, "identity": lambda x: x},
    **{name: getattr(F, name) for name in ("elu", "gelu", "silu", "mish", "selu", "leaky_relu", "softplus")},
}

Layer = tuple[Tensor, Tensor]  # weight (out, in), bias (out,)


class Standardisation(NamedTuple):
    """Standardisation of states: (state - mean) / std, (dim_s,) float64 each, clipped to [-clip, clip]."""

    mean: Tensor
    std: Tensor
    clip: float = math.inf

    def __call__(self, states: Tensor) -> Tensor:
        # In float64: where the mean is large compared to the deviation, float32 would lose digits.
        return ((states.double() - self.mean) / self.std).clamp_(-self.clip, self.clip).float()


@dataclass(eq=False, repr=False)
class Actor(Policy):
    """A multilayer perceptron from states to actions.

    A deterministic actor returns the output of the last layer, through tanh if `squash`, scaled from [-1, 1] to `scale`
    and clipped to `clip`. A stochastic one is a normal distribution of that mean and of standard deviation
    exp(clamp(log_std)), through the same tanh and scale. Its output is the deterministic action and the standard
    deviation before tanh (without tanh, in the units of `scale`). Its density is the one before clipping.

    Args:
        name: Name in rankings and errors.
        layers: Weight (out, in) and bias (out,) of every layer, float32; the last layer gives the mean.
        activation: Activation between layers, one of `ACTIVATIONS`.
        squash: Apply tanh to the action.
        log_std: Log standard deviations (dim_a,), or the layer that gives them from the last hidden layer.
        log_std_bounds: Range to which those of a layer are clamped.
        stochastic: Act by the distribution; needs `log_std` or logits.
        standardisation: Standardisation of the states.
        scale: Bounds to which actions in [-1, 1] are scaled.
        clip: Bounds to which actions and samples are clipped.
        head: Meaning of the last layer's output: "action"; for discrete actions "logits" or "values", of which the
            largest is taken. A stochastic actor returns the probabilities of its logits.
        atoms: (B,) float32 values of a distributional critic: the last layer gives B logits for each action, whose
            value is the mean of the atoms under their softmax.

    Raises:
        ValueError: `log_std` is missing, or widths do not fit the layers.
    """

    name: str
    layers: InitVar[Sequence[Layer]]
    _: KW_ONLY
    activation: str = "relu"
    squash: bool = True
    log_std: Layer | Tensor | None = None
    log_std_bounds: tuple[float, float] = (-20, 2)
    stochastic: bool = False
    standardisation: Standardisation | None = None
    scale: Bounds | None = None
    clip: Bounds | None = None
    head: str = "action"
    atoms: Tensor | None = None
    state_dim: int = field(init=False)
    action_dim: int = field(init=False)

    def __post_init__(self, layers: Sequence[Layer]) -> None:
        if self.stochastic and self.log_std is None and self.head == "action":
            raise ValueError(f"policy {self.name!r}: its standard deviations are not known: load it without stochastic")
        outputs, atoms = len(layers[-1][0]), 1 if self.atoms is None else len(self.atoms)
        self.state_dim, self.action_dim = layers[0][0].shape[1], outputs // atoms
        self.action_count = None if self.head == "action" else self.action_dim
        log_std = self.log_std[1] if isinstance(self.log_std, tuple) else self.log_std
        for what, values, width in (
            ("standardisation", (self.standardisation or ())[:2], self.state_dim),
            ("scale", self.scale or (), self.action_dim),
            ("clip", self.clip or (), self.action_dim),
            ("log_std", () if log_std is None else (log_std,), self.action_dim),
        ):
            if wrong := [tuple(value.shape) for value in values if value.shape != (width,)]:
                raise ValueError(f"policy {self.name!r}: {what} has shape {wrong[0]}, expected ({width},)")
        *before, last = layers
        if self.stochastic and isinstance(self.log_std, tuple):
            weight, bias = (torch.cat(parts) for parts in zip(last, self.log_std, strict=True))
            last = weight, bias
        self._layers = [*before, last]
        if self.activation in ("relu", "tanh"):
            self._sizes = [self.state_dim, *(len(bias) for _, bias in self._layers)]
            self._parameters = torch.cat([part.flatten() for layer in self._layers for part in layer])[None]
            self._layers = []

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        if states.shape[-1] != self.state_dim:
            raise ValueError(f"policy {self.name!r} reads states of width {self.state_dim}, got {states.shape[-1]}")
        mean, *spread = self._last_layers(states)
        if self.head != "action":
            if self.head == "logits" and self.stochastic:
                return Output("discrete", mean.softmax(1))
            if self.atoms is not None:
                mean = mean.view(len(mean), self.action_dim, len(self.atoms)).softmax(2) @ self.atoms
            return Output("discrete", one_hot(mean.argmax(1), self.action_dim))
        action = mean.tanh() if self.squash else mean
        action = action if self.scale is None else self.scale.from_unit(action)
        action = action if self.clip is None else action.clamp(*self.clip)
        if not self.stochastic:
            return Output("action", action)
        log_std = spread[0].clamp(*self.log_std_bounds) if spread else torch.as_tensor(self.log_std).expand_as(mean)
        std = log_std.exp()
        transforms: list[dist.Transform] = [_Tanh()] if self.squash else []
        normal = dist.Normal(mean, std, validate_args=False)
        if self.scale is not None:
            half, middle = (self.scale.high - self.scale.low) / 2, (self.scale.low + self.scale.high) / 2
            transforms.append(dist.AffineTransform(middle, half))
            std = std if self.squash else std * half
        distribution = dist.TransformedDistribution(normal, transforms, validate_args=False)
        return Output("gaussian", action, std, distribution, self.clip)

    def _last_layers(self, states: Tensor) -> tuple[Tensor, ...]:
        """Return (…, N, outputs) each: the last layer's output, and, if stochastic, that of log deviations."""
        parts = []
        for hidden in states.split(_ROWS, -2):
            hidden = hidden if self.standardisation is None else self.standardisation(hidden)
            for layer in self._layers[:-1]:
                hidden = ACTIVATIONS[self.activation](F.linear(hidden, *layer))
            if self._layers:
                parts.append(F.linear(hidden, *self._layers[-1]))
            else:
                outputs = ops.mlp(hidden, self._parameters, self._sizes, activation=self.activation)
                parts.append(outputs if hidden.dim() == 3 else outputs[0])
        outputs = torch.cat(parts, -2)
        return outputs.split(self.action_dim, 1) if self.stochastic and self.head == "action" else (outputs,)


class _Tanh(dist.TanhTransform):
    """Tanh whose inverse moves actions on its bounds, where the density is not defined, just inside."""

    codomain = dist.constraints.real  # type: ignore[assignment]

    def _inverse(self, y: Tensor) -> Tensor:
        return super()._inverse(y.clamp(-LARGEST, LARGEST))
