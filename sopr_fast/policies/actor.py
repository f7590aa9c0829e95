"""Actors read from files: multilayer perceptrons with deterministic or tanh-normal actions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributions as dist

from .output import Output
from .policy import Policy

# Activations of this many rows stay in cache: 1.1 to 1.6 times as fast as whole batches. Actors that share an
# architecture gain nothing from batched products over them one by one, so each is evaluated alone.
_ROWS = 1024
_LARGEST = 1 - 2**-23  # below 1 in float32, so that the inverse of tanh is finite

ACTIVATIONS = {"relu": torch.relu_, "tanh": torch.tanh_}

Layer = tuple[Tensor, Tensor]  # weight (out, in), bias (out,)


class Actor(Policy):
    """A multilayer perceptron from states to actions.

    Deterministic, the action is the last layer's output, through tanh if `squash`. With `stochastic=True` it
    is a normal of that mean and standard deviation exp(clip(log_std, -20, 2)), through tanh if `squash`; the
    columns are then the deterministic action and the normal's standard deviation.

    Args:
        name: names it in rankings and errors.
        layers: weight (out, in) and bias (out,) of every layer, float32, the last one's output is the mean.
        activation: "relu" or "tanh", between layers.
        squash: tanh on the action.
        log_std: the layer beside the last one that gives log standard deviations.
        stochastic: act by the distribution; needs `log_std`.
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[Layer],
        *,
        activation: str = "relu",
        squash: bool = True,
        log_std: Layer | None = None,
        stochastic: bool = False,
    ):
        if stochastic and log_std is None:
            raise ValueError(f"policy {name!r} has no log_std layer, so it cannot be stochastic")
        if activation not in ACTIVATIONS:
            raise ValueError(f"policy {name!r}: activation {activation!r}, expected one of {list(ACTIVATIONS)}")
        self.name = name
        self.activation, self.squash, self.stochastic = activation, squash, stochastic
        self._hidden, self._mean, self._log_std = list(layers[:-1]), layers[-1], log_std

    @property
    def state_dim(self) -> int:
        return (self._hidden or [self._mean])[0][0].shape[1]

    @property
    def action_dim(self) -> int:
        return self._mean[0].shape[0]

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        if states.shape[1] != self.state_dim:
            raise ValueError(f"policy {self.name!r} reads {self.state_dim} state columns, got {states.shape[1]}")
        mean = states.new_empty(len(states), self.action_dim)
        std = torch.empty_like(mean) if self.stochastic else None
        for first in range(0, len(states), _ROWS):
            rows = slice(first, first + _ROWS)
            hidden = states[rows]
            for layer in self._hidden:
                hidden = ACTIVATIONS[self.activation](_linear(hidden, layer))
            mean[rows] = _linear(hidden, self._mean)
            if std is not None:
                std[rows] = _linear(hidden, self._log_std).clamp_(-20, 2).exp_()
        if std is None:
            return Output("action", mean.tanh_() if self.squash else mean)
        if not self.squash:
            return Output("gaussian", mean, std)
        normal = dist.Normal(mean, std, validate_args=False)
        squashed = dist.TransformedDistribution(normal, dist.TanhTransform(), validate_args=False)
        return Output("gaussian", mean.tanh(), std, squashed)

    def log_prob(self, states: Tensor, actions: Tensor, source: Tensor | None = None) -> Tensor:
        """(N,): log density of actions (N, dim_a), those of ±1 taken just inside; see `Policy.log_prob`."""
        return super().log_prob(states, actions.clamp(-_LARGEST, _LARGEST) if self.squash else actions, source)


def _linear(x: Tensor, layer: Layer) -> Tensor:
    weight, bias = layer
    return torch.addmm(bias, x, weight.t())
