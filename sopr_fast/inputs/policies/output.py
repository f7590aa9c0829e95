"""Output of a policy for a batch of states, in one form whatever the policy returned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch import distributions as dist

from ...runtime.arrays import as_numbers
from ...runtime.checks import TOO_LARGE

WORDS = (
    "give words as indices of discrete actions, codes[word], with one dictionary of codes for the log and all "
    "policies, and pass action_count"
)
_EXPECTED = "expected an array or tensor of actions, such as means, or torch's Normal or Categorical"


class Bounds(NamedTuple):
    """Bounds of the actions, (dim_a,) float32 each."""

    low: Tensor
    high: Tensor

    def from_unit(self, actions: Tensor) -> Tensor:
        """Scale actions from [-1, 1] to [low, high]."""
        return self.low + 0.5 * (actions + 1) * (self.high - self.low)


@dataclass(frozen=True)
class Output:
    """Actions in N states, their normal distributions, or probabilities of discrete actions.

    Attributes:
        kind: "action", "gaussian" or "discrete".
        mean: (N, dim_a) float32: actions, means, or probabilities.
        std: (N, dim_a) float32 standard deviations of kind "gaussian", else None.
    """

    kind: str
    mean: Tensor
    std: Tensor | None = None

    def action(self) -> Tensor:
        """Return (N, dim_a): the action, the mean, or the most likely discrete action, one-hot, ties to the first."""
        if self.kind != "discrete":
            return self.mean
        return one_hot(self.mean.argmax(1), self.mean.shape[1])

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log density (N,) of actions (N, dim_a), or the log probability of one-hot ones.

        ValueError is raised for kind "action", which has no density.
        """
        if self.kind == "discrete":
            return dist.OneHotCategorical(self.mean, validate_args=False).log_prob(actions.float())
        if self.std is None:
            raise ValueError("a deterministic policy: its actions have no density")
        return dist.Normal(self.mean, self.std, validate_args=False).log_prob(actions.float()).sum(1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Sample actions (N, dim_a) float32, one-hot if discrete; kind "action" returns its own.

        The seed is drawn from `generator`, or torch's global one if None.
        """
        seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
        generator = torch.Generator().manual_seed(seed)
        if self.std is not None:
            return torch.normal(self.mean, self.std, generator=generator)
        if self.kind == "action":
            return self.mean
        return one_hot(torch.multinomial(self.mean, 1, generator=generator)[:, 0], self.mean.shape[1])


@dataclass(frozen=True)
class Layout:
    """Layout of the columns that a model reads of every policy in every state.

    Attributes:
        kind: "action": the action. "gaussian": mean and standard deviation, the latter 0 for deterministic policies.
            "discrete": probabilities, one-hot for policies that return indices.
        action_dim: Width of the action, or number of discrete actions.
    """

    kind: str
    action_dim: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return 2 * self.action_dim if self.kind == "gaussian" else self.action_dim

    @property
    def action_count(self) -> int | None:
        """Number of discrete actions."""
        return self.action_dim if self.kind == "discrete" else None

    def columns(self, name: str, output: Output, whose: str = "the model") -> Tensor:
        """Return the columns (N, width) of a policy's output; ValueError if its actions are of another kind or width.

        `whose` layout this is, is said in the error.
        """
        is_discrete = output.kind == "discrete"
        if is_discrete != (self.kind == "discrete"):
            kinds = ("discrete", "continuous") if is_discrete else ("continuous", "discrete")
            remedy = "if all are discrete, load all policies by sopr_fast.load_policies(…, action_count=…)"
            raise ValueError(f"policy {name!r} has {kinds[0]} actions, {whose} {kinds[1]} ones; {remedy}")
        if output.mean.shape[1] != self.action_dim:
            shapes = tuple(output.mean.shape), (len(output.mean), self.action_dim)
            raise ValueError(f"policy {name!r} returned shape {shapes[0]}, expected {shapes[1]} as {whose} has")
        if self.kind != "gaussian":
            return output.mean
        std = torch.zeros_like(output.mean) if output.std is None else output.std
        return torch.cat([output.mean, std], 1)


def one_hot(indices: Tensor, width: int) -> Tensor:
    """Return float32 rows (N, width) of zeros, with a one at each index of `indices` (N,)."""
    return torch.nn.functional.one_hot(indices.long(), width).float()


def to_array(value: Any) -> np.ndarray:
    """Return the values as an array of floats, integers or bools, or as one of dtype object if they are not that."""
    if isinstance(value, tuple) or (isinstance(value, Tensor) and (value.is_meta or value.layout != torch.strided)):
        return np.empty(0, object)
    array = as_numbers(value)
    return array if array.dtype.kind in "fiub" else np.empty(0, object)


@dataclass(frozen=True)
class OutputReader:
    """Reader of what a policy returns in a number of states, which are rows `source` of the user's data."""

    name: str
    states: int
    action_count: int | None
    source: Tensor | None

    def read(self, value: Any) -> Output:
        """Return a policy's output in one form, or raise ValueError, which names the policy and the first wrong row."""
        output = value if isinstance(value, Output) else self._read(value)
        for values in (output.mean, output.std):
            if values is not None and (wrong := ~(values.abs() < TOO_LARGE)).any():
                number = float(values[wrong][0])
                excess = f", which exceeds the magnitude {TOO_LARGE:g}" if math.isfinite(number) else "; leave it out"
                raise self._error(f"{number:g}", wrong.any(1), excess)
        return output

    def _error(self, what: str, wrong: Tensor | None = None, advice: str = "") -> ValueError:
        """Return an error about what was returned, in which rows (N,) bool, and what to do."""
        if wrong is not None:
            row = int(wrong.nonzero()[0])
            what += f" at state row {row if self.source is None else int(self.source[row])}"
        return ValueError(f"policy {self.name!r} returned {what}{advice}")

    def _read(self, value: Any) -> Output:
        if isinstance(value, dist.Independent):
            value = value.base_dist
        if isinstance(value, dist.Categorical | dist.OneHotCategorical):
            return self._probabilities(self._tensor(value.probs))
        if isinstance(value, dist.Normal):
            if self.action_count is not None:
                raise self._error("a normal distribution of actions, which action_count says are discrete")
            return Output("gaussian", *(self._matrix(self._tensor(part)) for part in (value.mean, value.stddev)))
        values = self._tensor(value)
        if not values.is_floating_point():
            return self._indices(values)
        return Output("action", self._matrix(values)) if self.action_count is None else self._probabilities(values)

    def _indices(self, indices: Tensor) -> Output:
        if indices.dim() == 2 and indices.shape[1] == 1:
            indices = indices[:, 0]
        if indices.shape != (self.states,):
            raise self._error(
                f"integers of shape {tuple(indices.shape)}, expected ({self.states},) indices; return floats of "
                "continuous actions, and of several discrete ones an index for each combination"
            )
        if self.action_count is None:
            call = "sopr_fast.load_policies(…, action_count=N), N discrete actions"
            raise self._error(f"integer actions: load the policies by {call}")
        outside = (indices < 0) | (indices >= self.action_count)
        if outside.any():
            raise self._error(f"action {indices[outside][0]}, expected 0 to {self.action_count - 1},", outside)
        return Output("discrete", one_hot(indices, self.action_count))

    def _probabilities(self, value: Tensor) -> Output:
        p = self._matrix(value, self.action_count)
        wrong = (p < 0).any(1) | ((p.sum(1) - 1).abs() > 1e-3)
        if wrong.any():
            advice = "the index of the largest (argmax), or torch.distributions.Categorical(logits=…) to sample"
            raise self._error("values that are not probabilities", wrong, f"; of values or logits, return {advice}")
        return Output("discrete", p)

    def _matrix(self, value: Tensor, width: int | None = None) -> Tensor:
        """Return the values as (N, width) float32; N numbers are N actions of width 1."""
        shape = tuple(value.shape)
        if value.dim() == 1:
            value = value[:, None]
        if value.dim() != 2 or len(value) != self.states or value.shape[1] == 0 or width not in (None, value.shape[1]):
            hint = "a policy gets a batch of states and returns one action for each; indices are integers"
            raise self._error(f"shape {shape}, expected ({self.states}, {width or 'action width'}); {hint}")
        return value.float().contiguous()

    def _tensor(self, value: Any) -> Tensor:
        """Return the values as a float or int64 tensor of their own memory, which a policy may use again."""
        array = to_array(value)
        if array.dtype == object:
            kind = type(value).__name__
            of_dtype = f" of {value.dtype}" if hasattr(value, "dtype") else ""
            raise self._error(f"a {kind}{of_dtype}, {_EXPECTED}{f'; {WORDS}' if of_dtype else ''}")
        return torch.from_numpy(np.array(array, dtype=np.float32 if array.dtype.kind == "f" else np.int64))
