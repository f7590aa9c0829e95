"""Multilayer perceptrons evaluated together: one batched matrix product per layer."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ..runtime.devices import without_autocast
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
        count: C.
        parameters: Weight (C, in, out) and bias (C, 1, out) of every layer, in turn.
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
        self.parameters: list[Tensor] = []
        for width, next_width in itertools.pairwise(sizes):
            for shape in ((draws, width, next_width), (draws, 1, next_width)):
                start = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu")
                start = (2 * start - 1) / math.sqrt(width)
                start = start.repeat_interleave(copies, 0).to(device)
                self.parameters.append(start.requires_grad_())

    def __call__(self, x: Tensor, *, within: torch.dtype = torch.float32) -> Tensor:
        """Return outputs (C, B, out) for inputs (C, B, in), or for (B, in) that all perceptrons share.

        Args:
            x: Inputs.
            within: Dtype of the products between hidden layers; inputs and outputs are multiplied in float32.
        """
        x = x.expand(self.count, -1, -1)
        last = len(self.parameters) - 2
        with without_autocast(x.device):
            for i in range(0, last + 2, 2):
                dtype = within if 0 < i < last else torch.float32
                weight, bias = (parameter.to(dtype) for parameter in self.parameters[i : i + 2])
                x = torch.baddbmm(bias, x.to(dtype), weight)
                if i < last:
                    x = x.relu_()
        return x

    def frozen_copy(self) -> Self:
        """Return a copy without gradients, for use as a target network."""
        copied = copy.copy(self)
        copied.parameters = [parameter.detach().clone() for parameter in self.parameters]
        return copied

    def move_toward(self, other: StackedMLP, rate: float) -> None:
        """Add rate * (other - self) to all parameters."""
        with torch.no_grad():
            for own, target in zip(self.parameters, other.parameters, strict=True):
                own.lerp_(target, rate)


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
        if self.discrete:
            return (self(states) * actions).sum(-1)
        leading = torch.broadcast_shapes(states.shape[:-1], actions.shape[:-1])
        return self(torch.cat([states.expand(*leading, -1), actions.expand(*leading, -1)], -1))[..., 0]
