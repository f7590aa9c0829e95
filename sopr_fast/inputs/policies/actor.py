"""Multilayer perceptrons read from files, with the standardisation, squashing and clipping that libraries add."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ... import ops
from .output import Bounds, Output, one_hot, to_array
from .policy import Policy

_ROWS = 4096  # of a batch, whose activations stay in cache

ACTIVATIONS = {
    **{"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_, "identity": lambda x: x},
    **{name: getattr(F, name) for name in ("elu", "gelu", "silu", "mish", "selu", "leaky_relu", "softplus")},
}

Arrays = Mapping[str, Any]  # tensors, or values that numpy.asarray accepts
Layer = tuple[Tensor, Tensor]  # weight (out, in), bias (out,)


class Standardisation(NamedTuple):
    """Standardisation of states: (state - mean) / std, (dim_s,) float64 each, clipped to [-clip, clip].

    `source` says where the statistics come from.
    """

    mean: Tensor
    std: Tensor
    clip: float = math.inf
    source: str = "its file"

    def __call__(self, states: Tensor) -> Tensor:
        # In float64: where the mean is large compared to the deviation, float32 would lose digits.
        return ((states.double() - self.mean) / self.std).clamp_(-self.clip, self.clip).float()


@dataclass(eq=False, repr=False)
class Actor(Policy):
    """A multilayer perceptron from states to actions.

    It returns the output of the last layer, through tanh if `squash`, scaled from [-1, 1] to `scale` and clipped to
    `clip`; or, of discrete actions, the one of the largest output.

    Args:
        name: Name in rankings and errors.
        layers: Weight (out, in) and bias (out,) of every layer, float32.
        activation: Activation between layers, one of `ACTIVATIONS`.
        squash: Apply tanh to the action.
        standardisation: Standardisation of the states.
        scale: Bounds to which actions in [-1, 1] are scaled.
        clip: Bounds to which actions are clipped.
        is_discrete: Whether actions are discrete.

    Raises:
        ValueError: Widths do not fit the layers.
    """

    name: str
    layers: InitVar[Sequence[Layer]]
    _: KW_ONLY
    activation: str = "relu"
    squash: bool = True
    standardisation: Standardisation | None = None
    scale: Bounds | None = None
    clip: Bounds | None = None
    is_discrete: bool = False
    state_dim: int = field(init=False)
    action_dim: int = field(init=False)

    def __post_init__(self, layers: Sequence[Layer]) -> None:
        self.state_dim, self.action_dim = layers[0][0].shape[1], len(layers[-1][0])
        self.action_count = self.action_dim if self.is_discrete else None
        for what, values, width in (
            ("standardisation", (self.standardisation or ())[:2], self.state_dim),
            ("scale", self.scale or (), self.action_dim),
            ("clip", self.clip or (), self.action_dim),
        ):
            if wrong := [tuple(value.shape) for value in values if value.shape != (width,)]:
                raise ValueError(f"policy {self.name!r}: {what} has shape {wrong[0]}, expected ({width},)")
        self._layers, self._sizes = [*layers], []
        if self.activation in ("relu", "tanh"):
            self._sizes = [self.state_dim, *(len(bias) for _, bias in self._layers)]
            self._parameters = torch.cat([part.flatten() for layer in self._layers for part in layer])[None]
            self._layers = []

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        if states.shape[-1] != self.state_dim:
            raise ValueError(f"policy {self.name!r} reads states of width {self.state_dim}, got {states.shape[-1]}")
        last = self._last_layer(states)
        if self.is_discrete:
            return Output("discrete", one_hot(last.argmax(-1), self.action_dim))
        action = last.tanh() if self.squash else last
        action = action if self.scale is None else self.scale.from_unit(action)
        return Output("action", action if self.clip is None else action.clamp(*self.clip))

    def _last_layer(self, states: Tensor) -> Tensor:
        """Return the output (…, N, outputs) of the last layer."""
        if self._sizes:
            rows = states if self.standardisation is None else self.standardisation(states)
            outputs = ops.mlp(rows, self._parameters, self._sizes, activation=self.activation)
            return outputs if rows.dim() == 3 else outputs[0]
        parts = []
        for hidden in states.split(_ROWS, -2):
            hidden = hidden if self.standardisation is None else self.standardisation(hidden)
            for layer in self._layers[:-1]:
                hidden = ACTIVATIONS[self.activation](F.linear(hidden, *layer))
            parts.append(F.linear(hidden, *self._layers[-1]))
        return torch.cat(parts, -2)

    def _form(self) -> tuple[Any, ...]:
        """Return what perceptrons have in common that act in one pass."""
        moments, bounds = self.standardisation and self.standardisation.clip, (self.scale is None, self.clip is None)
        return (*self._sizes, self.activation, self.squash, self.is_discrete, moments, *bounds)


def stacks(policies: Sequence[Policy]) -> list[tuple[list[int], Actor | None]]:
    """Return perceptrons of one form as one that acts in states (P, B, dim_s) of each, with their places.

    Other policies come with None.
    """
    groups: dict[Any, list[int]] = {}
    for place, policy in enumerate(policies):
        form = policy._form() if isinstance(policy, Actor) and policy._sizes else place
        groups.setdefault(form, []).append(place)
    return [(places, _stacked([policies[place] for place in places])) for places in groups.values()]


def _stacked(policies: Sequence[Policy]) -> Actor | None:
    actors = [policy for policy in policies if isinstance(policy, Actor) and policy._sizes]
    if not actors:
        return None
    whole = copy.copy(actors[0])
    whole._parameters = torch.cat([actor._parameters for actor in actors])
    for part in ("standardisation", "scale", "clip"):
        values = [getattr(actor, part) for actor in actors]
        if values[0] is not None:
            fields = zip(*values, strict=True)
            joined = (torch.stack(each)[:, None] if isinstance(each[0], Tensor) else each[0] for each in fields)
            setattr(whole, part, type(values[0])(*joined))
    return whole


def layer_names(arrays: Arrays, pattern: str, first: int = 0, step: int = 2) -> list[str]:
    """Return the layers named by a pattern with {} for the numbers `first`, `first + step`, …, up to a missing one."""
    names = (pattern.format(number) for number in itertools.count(first, step))
    return [*itertools.takewhile(lambda name: f"{name}.weight" in arrays, names)]


def floats(arrays: Arrays, key: str) -> Tensor:
    """Return array `key` in its own precision, or raise ValueError if it is not of finite floats."""
    values = to_array(arrays[key])
    if values.dtype.kind != "f" or not np.isfinite(values).all():
        hint = "; if training diverged, leave the file out"
        raise ValueError(f"{key} must be finite floats, got {values.dtype}{hint if values.dtype.kind == 'f' else ''}")
    return torch.from_numpy(np.array(values, np.float32 if values.itemsize <= 4 else np.float64, order="C"))


def perceptron(arrays: Arrays, names: Iterable[str]) -> list[Layer]:
    """Return the named layers, float32, whose bias may miss, or raise ValueError if widths do not fit."""
    layers: list[Layer] = []
    for name in names:
        weight = floats(arrays, f"{name}.weight").float()
        bias = floats(arrays, f"{name}.bias").float() if f"{name}.bias" in arrays else weight.new_zeros(len(weight))
        if weight.dim() != 2 or weight.numel() == 0 or bias.shape != weight.shape[:1]:
            shapes = f"{name}.weight {tuple(weight.shape)} and {name}.bias {tuple(bias.shape)}"
            raise ValueError(f"{shapes} are not a layer, expected (out, in) and (out,)")
        if layers and weight.shape[1] != len(layers[-1][0]):
            reads, given = weight.shape[1], len(layers[-1][0])
            raise ValueError(f"{name}.weight reads {reads} values, the layer before gives {given}")
        layers.append((weight, bias))
    return layers
