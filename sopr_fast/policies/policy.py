"""The one form in which the rest of the package meets a policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from .output import Output, check_finite


class Policy(ABC):
    """A named policy: actions, or distributions of actions, for a batch of states.

    States are (N, dim_s) float32 CPU tensors; `source` (N,) int64 are their rows in the user's data, needed
    by policies that are arrays of actions and used in messages. Results are finite float32 CPU tensors.
    `given` is the user's own object that it stands for, None where that is the policy itself.
    """

    name: str
    given: Any = None

    @abstractmethod
    def _output(self, states: Tensor, source: Tensor | None) -> Output: ...

    def output(self, states: Tensor, source: Tensor | None = None) -> Output:
        """Everything the policy says of the states.

        Raises:
            ValueError: a wrong shape, dtype or value, with the policy's name and the row.
            RuntimeError: the policy itself raised; its error is the cause.
        """
        with torch.no_grad():
            output = self._output(states, source)
        check_finite(self.name, output.mean, source)
        if output.std is not None:
            check_finite(self.name, output.std, source)
        return output

    def is_same(self, other: Policy) -> bool:
        """Whether both stand for one object, under whatever names."""
        mine, theirs = (policy if policy.given is None else policy.given for policy in (self, other))
        return mine is theirs

    def act(self, states: Tensor, source: Tensor | None = None) -> Tensor:
        """(N, dim_a): actions, means of distributions, or the likeliest discrete action, one-hot."""
        return self.output(states, source).action()

    def columns(self, states: Tensor, source: Tensor | None = None) -> Tensor:
        """(N, dim_c): the action, mean and standard deviation, or probabilities of discrete actions."""
        return self.output(states, source).columns()

    def sample(self, states: Tensor, generator: torch.Generator | None = None, source: Tensor | None = None) -> Tensor:
        """(N, dim_a): one drawn action a state, one-hot if discrete; a deterministic policy's own action.

        A torch distribution, that a policy returned or that an `Actor` makes, draws from torch's global generator,
        seeded meanwhile and then set back; other threads must not draw from it at that time, unless by this method.
        """
        output = self.output(states, source)
        if output.density() is None:
            return output.mean
        return output.sample(int(torch.randint(2**62, (), generator=generator, device="cpu")))

    def log_prob(self, states: Tensor, actions: Tensor, source: Tensor | None = None) -> Tensor:
        """(N,): log density of actions (N, dim_a), or log probability of one-hot ones; -inf outside the support.

        Raises:
            ValueError: the policy is deterministic and so has no density.
        """
        output = self.output(states, source)
        if output.density() is None:
            raise ValueError(f"policy {self.name!r} is deterministic: its actions have no density")
        return output.log_prob(actions)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
