"""Multilayer perceptrons evaluated and trained together."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..runtime.adam import Adam
from .log import Log


class StackedMLP:
    """C = draws * copies perceptrons of one architecture, with ReLU between layers, and Adam that trains them.

    Copies of each draw stand side by side. Initial weights are uniform in ±1 / sqrt(input width).

    Attributes:
        parameters: (C, Z) as `ops.mlp` reads them.
        adam: The optimiser.
        average: The same networks with averages of the weights, which `train` moves.
    """

    average: StackedMLP

    def __init__(
        self, sizes: Sequence[int], *, rate: float, draws: int = 1, copies: int = 1, seed: int = 0, **options: Any
    ):
        self.sizes = list(sizes)
        different = torch.stack([_initial(sizes, seed * draws + draw) for draw in range(draws)])
        self.parameters = different.repeat_interleave(copies, 0).requires_grad_()
        self.average = copy.copy(self)
        self.average.parameters = self.parameters.detach().clone()
        self.adam = Adam([self.parameters], rate, **options)

    def __call__(self, x: Tensor) -> Tensor:
        """Return outputs (C, B, out) for inputs (C, B, in), or for (B, in) that all perceptrons share."""
        return ops.mlp(x, self.parameters, self.sizes)

    def train(self, x: Tensor, target: Tensor, *, average_rate: float = 0.0, **losses: Any) -> Tensor:
        """Train by one step of Adam, move the average by `average_rate`, and return losses (C,); see `ops.mlp_step`."""
        average = self.average.parameters if average_rate else None
        state = {"average": average, "average_rate": average_rate, **self.adam.next_step()}
        return ops.mlp_step(x, target, self.parameters.detach(), self.sizes, **state, **losses)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that training changes, by name."""
        weights = {"weights": self.parameters.detach(), "average": self.average.parameters}
        return weights | self.adam.tensors("adam")


class ActionValue(StackedMLP):
    """C functions of state and action.

    Networks read continuous actions next to the state. For discrete actions they have one output for each; actions
    weigh these outputs: one-hot actions select one, probabilities give the expectation.
    """

    average: ActionValue

    def __init__(self, log: Log, hidden: Sequence[int], **options: Any):
        self.discrete = log.discrete
        inputs, outputs = (0, log.action_dim) if self.discrete else (log.action_dim, 1)
        super().__init__([log.state_dim + inputs, *hidden, outputs], **options)

    def values(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return values (C, B) of states (C, B, dim_s) or (B, dim_s), and actions (C, B, dim_a), or both without C."""
        out = self(self._inputs(states, actions))
        return (out * actions).sum(-1) if self.discrete else out[..., 0]

    def fit(self, states: Tensor, actions: Tensor, target: Tensor, *, average_rate: float) -> Tensor:
        """Train by one step on (value - target)² (C, B), averaged over rows; return losses (C,).

        Discrete actions must be one-hot.
        """
        target = target[..., None]
        weight = torch.full_like(target, 2.0)  # a loss below its threshold is half the square
        if self.discrete:
            weight = weight * actions
        losses = {"weight": weight, "thresholds": target.new_full((self.sizes[-1],), math.inf)}
        inputs = self._inputs(states, actions)
        return self.train(inputs, target.expand_as(weight), average_rate=average_rate, **losses)

    def _inputs(self, states: Tensor, actions: Tensor) -> Tensor:
        if self.discrete:
            return states
        return torch.cat([states.expand(*actions.shape[:-1], -1), actions], -1)


def _initial(sizes: Sequence[int], seed: int) -> Tensor:
    """Return the initial weights (Z,) of one perceptron."""
    generator, parts = torch.Generator().manual_seed(seed), []
    for width, next_width in itertools.pairwise(sizes):
        for shape in ((width, next_width), (1, next_width)):
            start = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
            parts.append(((2 * start - 1) / math.sqrt(width)).T.flatten())
    return torch.cat(parts)
