"""Multilayer perceptrons evaluated and trained together."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from .. import ops
from ..runtime.adam import Adam
from .log import Units


class StackedMLP:
    """C perceptrons of one architecture, with ReLU between layers.

    Args:
        sizes: Widths of input, hidden layers and output.
        draws: Number of different initialisations.
        copies: Copies of each initialisation, side by side; C = draws * copies.
        seed: Seed of the initial weights, uniform in ±1 / sqrt(input width).
        device: Device of the weights.

    Attributes:
        parameters: (C, Z) as `ops.mlp` reads them.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        draws: int = 1,
        copies: int = 1,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ):
        self.sizes = list(sizes)
        different = torch.stack([_initial(sizes, seed * draws + draw) for draw in range(draws)])
        self.parameters = different.repeat_interleave(copies, 0).to(device).requires_grad_()

    def __call__(self, x: Tensor) -> Tensor:
        """Return outputs (C, B, out) for inputs (C, B, in), or for (B, in) that all perceptrons share."""
        return ops.mlp(x, self.parameters, self.sizes)

    def train(
        self,
        adam: Adam,
        x: Tensor,
        target: Tensor,
        *,
        average: StackedMLP | None = None,
        average_rate: float = 0.0,
        **losses: Any,
    ) -> Tensor:
        """Train by one step of Adam, whose only tensor are the parameters, and return losses (C,); see `ops.mlp_step`.

        The parameters of `average` move toward the new ones.
        """
        following = None if average is None else average.parameters
        state = {"average": following, "average_rate": average_rate, **adam.next_step()}
        return ops.mlp_step(x, target, self.parameters.detach(), self.sizes, **state, **losses)

    def frozen_copy(self) -> Self:
        """Return a copy without gradients, for use as a target network."""
        copied = copy.copy(self)
        copied.parameters = self.parameters.detach().clone()
        return copied


class ActionValue(StackedMLP):
    """C functions of state and action.

    Networks read continuous actions next to the state. For discrete actions they have one output for each; actions
    weigh these outputs: one-hot actions select one, probabilities give the expectation.

    Args:
        units: Units of the states and actions, with their widths and device.
        hidden: Widths of the hidden layers.
        options: Other options of `StackedMLP`.
    """

    def __init__(self, units: Units, hidden: Sequence[int], **options: Any):
        self.discrete = units.discrete
        state_dim, action_dim = units.state_dim, units.action_dim
        sizes = [state_dim, *hidden, action_dim] if self.discrete else [state_dim + action_dim, *hidden, 1]
        super().__init__(sizes, device=units.mean.device, **options)

    def values(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return values (C, B).

        Args:
            states: (B, dim_s) or (C, B, dim_s).
            actions: (B, dim_a) or (C, B, dim_a).
        """
        out = self(self._inputs(states, actions))
        return (out * actions).sum(-1) if self.discrete else out[..., 0]

    def fit(
        self, adam: Adam, states: Tensor, actions: Tensor, target: Tensor, weight: Tensor, **average: Any
    ) -> Tensor:
        """Train by one step on weight * (value - target)², averaged over rows; return losses (C,).

        Args:
            adam: See `StackedMLP.train`, as `average`.
            states: See `values`.
            actions: See `values`; discrete ones must be one-hot.
            target: (C, B).
            weight: (C, B).
            average: Options of `StackedMLP.train`.
        """
        target, weight = target[..., None], 2 * weight[..., None]  # a loss below its threshold is half the square
        if self.discrete:
            weight = weight * actions
        thresholds = target.new_full((self.sizes[-1],), math.inf)
        inputs = self._inputs(states, actions)
        return self.train(adam, inputs, target.expand_as(weight), weight=weight, thresholds=thresholds, **average)

    def _inputs(self, states: Tensor, actions: Tensor) -> Tensor:
        if self.discrete:
            return states
        leading = torch.broadcast_shapes(states.shape[:-1], actions.shape[:-1])
        return torch.cat([states.expand(*leading, -1), actions.expand(*leading, -1)], -1)


def _initial(sizes: Sequence[int], seed: int) -> Tensor:
    """Return the initial weights (Z,) of one perceptron."""
    generator, parts = torch.Generator().manual_seed(seed), []
    for width, next_width in itertools.pairwise(sizes):
        for shape in ((width, next_width), (1, next_width)):
            start = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
            parts.append(((2 * start - 1) / math.sqrt(width)).T.flatten())
    return torch.cat(parts)
