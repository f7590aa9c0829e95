"""The interface through which the rest of the package uses a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .output import Output, OutputReader


class Policy(ABC):
    """A named policy: actions, or distributions of actions, for a batch of states.

    States are (N, dim_s), an array or a tensor; results are finite float32 tensors on the CPU. `source` (N,) int64
    holds the states' rows in the user's data: arrays of actions need it, and error messages name these rows.

    Every method that acts raises TypeError if the states are not numbers, ValueError if the policy returned a wrong
    shape, dtype or value, with its row, and RuntimeError, caused by the policy's own error, if the policy raised.

    Attributes:
        name: Name in rankings and errors.
        standardisation: What it does to states first, a `Standardisation` with its source, or None as far as is known.
        state_dim: Width of the states that the policy reads, None if unknown.
        action_dim: Width of the action, or number of discrete actions, None if unknown.
        action_count: Number of discrete actions, if the policy returns their indices or bare probabilities.
    """

    name: str
    standardisation: Any = None
    state_dim: int | None = None
    action_dim: int | None = None
    action_count: int | None = None

    @abstractmethod
    def _output(self, states: Tensor, source: Tensor | None) -> Any:
        """Return an `Output`, or what `load` lets a callable return."""

    def output(self, states: ArrayLike, source: Tensor | None = None) -> Output:
        """Return the actions in the states, or the distributions of actions."""
        states = self._tensor(states)
        with torch.no_grad():
            returned = self._output(states, source)
            return OutputReader(self.name, len(states), self.action_count, source).read(returned)

    def __call__(self, states: ArrayLike) -> np.ndarray:
        """Return the action in one state (dim_s,), or the actions in a batch (N, dim_s).

        They are float32, (dim_a,) or (N, dim_a); discrete ones are int64 indices, () or (N,). See `act`.
        """
        values = self._tensor(states, dims=(1, 2))
        output = self.output(values.view(-1, values.shape[-1]))
        actions = (output.mean.argmax(1) if output.kind == "discrete" else output.mean).numpy()
        return actions if values.dim() == 2 else actions[0, ...]

    def act(self, states: ArrayLike, source: Tensor | None = None) -> Tensor:
        """Return actions (N, dim_a): means of distributions; for discrete actions the most likely one, one-hot."""
        return self.output(states, source).action()

    def set_action_count(self, count: int | None) -> None:
        """Set the number of discrete actions, unless None; ValueError if the policy has another, or continuous ones."""
        if count in (None, self.action_count):
            return
        if self.action_count is not None or self.action_dim is not None:
            own = "continuous" if self.action_count is None else f"{self.action_count} discrete"
            raise ValueError(f"policy {self.name!r} has {own} actions, but action_count={count}: leave it out")
        self.action_count = count

    def __repr__(self) -> str:
        source = "" if self.standardisation is None else f", standardised by {self.standardisation.source!r}"
        return f"{type(self).__name__}({self.name!r}{source})"

    def _tensor(self, values: Any, dims: tuple[int, ...] = (2,)) -> Tensor:
        """Return states as a float32 tensor on the CPU, whose number of dimensions is one of `dims`."""
        if not isinstance(values, Tensor):
            try:
                values = torch.from_numpy(np.array(values, dtype=np.float32))
            except (TypeError, ValueError) as error:
                kind = type(values).__name__
                raise TypeError(f"policy {self.name!r}: states must be an array of numbers, got a {kind}") from error
        if values.dim() not in dims:
            raise ValueError(f"policy {self.name!r}: states must have shape (N, width), got {tuple(values.shape)}")
        return values.to("cpu", torch.float32)
