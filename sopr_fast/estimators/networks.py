"""Multilayer perceptrons side by side: one batched product a layer for all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..runtime.devices import without_autocast


class StackedMLP:
    """C perceptrons of one architecture, ReLU between layers.

    Args:
        sizes: input, hidden and output widths.
        draws: how many differ at the start.
        copies: of each draw; C = draws * copies, copies of one draw side by side.
        seed: of the initial weights, uniform in ±1 / sqrt(input width).
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
        generator = torch.Generator().manual_seed(seed)
        self.count = draws * copies
        self.parameters: list[Tensor] = []  # weight (C, in, out) and bias (C, 1, out) of every layer
        for read, written in itertools.pairwise(sizes):
            for shape in ((draws, read, written), (draws, 1, written)):
                start = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
                start = (2 * start - 1) / math.sqrt(read)
                start = start.repeat_interleave(copies, 0).to(device)
                self.parameters.append(start.requires_grad_())

    def __call__(self, x: Tensor) -> Tensor:
        """(C, B, in) or, the same for all, (B, in) → (C, B, out)."""
        x = x.expand(self.count, -1, -1)
        last = len(self.parameters) - 2
        with without_autocast(x.device):
            for i in range(0, last + 2, 2):
                weight, bias = self.parameters[i : i + 2]
                x = torch.baddbmm(bias, x, weight)
                if i < last:
                    x = x.relu_()
        return x

    def frozen_copy(self) -> StackedMLP:
        """The same weights, apart and without gradients: a target network."""
        copy = object.__new__(StackedMLP)
        copy.count = self.count
        copy.parameters = [parameter.detach().clone() for parameter in self.parameters]
        return copy

    def move_toward(self, other: StackedMLP, rate: float) -> None:
        """parameters += rate * (other's - parameters)."""
        with torch.no_grad():
            for mine, theirs in zip(self.parameters, other.parameters, strict=True):
                mine.lerp_(theirs, rate)


class ActionValue:
    """C functions of state and action.

    Continuous actions are read beside the state. Discrete ones, as one-hot or probabilities, weigh an output for
    each action, so probabilities give the exact expectation over actions.
    """

    def __init__(self, state_dim: int, action_dim: int, discrete: bool, hidden: Sequence[int], **options):
        self.discrete = discrete
        sizes = [state_dim, *hidden, action_dim] if discrete else [state_dim + action_dim, *hidden, 1]
        self.network = StackedMLP(sizes, **options)

    @property
    def parameters(self) -> list[Tensor]:
        return self.network.parameters

    def __call__(self, states: Tensor, actions: Tensor) -> Tensor:
        """States (B, dim_s) or (C, B, dim_s), actions (B, dim_a) or (C, B, dim_a) → (C, B)."""
        if self.discrete:
            return (self.network(states) * actions).sum(-1)
        leading = torch.broadcast_shapes(states.shape[:-1], actions.shape[:-1])
        x = torch.cat([states.expand(*leading, -1), actions.expand(*leading, -1)], -1)
        return self.network(x)[..., 0]

    def frozen_copy(self) -> ActionValue:
        copy = object.__new__(ActionValue)
        copy.discrete, copy.network = self.discrete, self.network.frozen_copy()
        return copy
