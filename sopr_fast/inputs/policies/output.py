"""Output of a policy for a batch of states, in one form whatever the policy returned."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch import distributions as dist

from ...runtime.arrays import as_numbers
from ...runtime.checks import TOO_LARGE
from ...runtime.process import fork_safe_lock

_global_generator = fork_safe_lock()
_COUNT = "load the policies by sopr_fast.load_policies(…, action_count=N) (--action-count N), N discrete actions"
WORDS = (
    "give words as indices of discrete actions, coded as in the log, such as "
    "numpy.unique(words, return_inverse=True)[1], and pass action_count"
)
_EXPECTED = f"expected an array or tensor of actions, Gaussian or Probabilities, and nothing else; {WORDS}"


class Gaussian(NamedTuple):
    """Normal distributions of actions: the output of a policy, or a policy given as arrays.

    Attributes:
        mean: (N, dim_a) array or tensor.
        std: Standard deviations, of the shape of the mean or broadcast to it; (dim_a,) holds one for each column of the
            actions. As a policy given as arrays, (N,) or (N, dim_a).
    """

    mean: Any
    std: Any


class Probabilities(NamedTuple):
    """Probabilities of discrete actions: the output of a policy, or a policy given as an array.

    Attributes:
        p: (N, actions) array or tensor.
    """

    p: Any


@dataclass(frozen=True)
class Bounds:
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
        distribution: The distribution of actions, where it is not the normal or categorical one of `mean` and `std`.
        clip: Bounds to which samples are clipped. The density is the one before clipping.
    """

    kind: str
    mean: Tensor
    std: Tensor | None = None
    distribution: dist.Distribution | None = None
    clip: Bounds | None = None

    def action(self) -> Tensor:
        """Return (N, dim_a): the action, the mean, or the most likely discrete action, one-hot, ties to the first."""
        if self.kind != "discrete":
            return self.mean
        return one_hot(self.mean.argmax(1), self.mean.shape[1])

    def density(self) -> dist.Distribution | None:
        """Return the distribution of actions, or None for a deterministic policy."""
        if self.kind == "discrete":
            return dist.OneHotCategorical(self.mean, validate_args=False)
        if self.distribution is None and self.std is not None:
            return dist.Normal(self.mean, self.std, validate_args=False)
        return self.distribution

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log density (N,) of actions (N, dim_a), or of one-hot ones; the policy must have a density."""
        density = self.density()
        assert density is not None
        if len(density.batch_shape + density.event_shape) == 1:  # over N numbers instead of (N, 1)
            actions = actions[:, 0]
        log_prob = density.log_prob(actions)
        if self.distribution is not None and (support := _support(density)) is not None:
            # Outside the support, a formula may give any number.
            log_prob = log_prob.masked_fill(~support.check(actions), -math.inf)
        return log_prob.sum(1) if log_prob.dim() == 2 else log_prob

    def sample(self, seed: int) -> Tensor:
        """Return actions (N, dim_a) float32 sampled from the density, if there is one, and clipped."""
        generator = torch.Generator().manual_seed(seed)
        if self.kind == "action":
            return self.mean
        if self.distribution is not None:
            # Torch's distributions sample from the global generator only.
            with _global_generator, torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                actions = self.distribution.sample().float().reshape(self.mean.shape)
        elif self.std is not None:
            actions = torch.normal(self.mean, self.std, generator=generator)
        else:
            actions = one_hot(torch.multinomial(self.mean, 1, generator=generator)[:, 0], self.mean.shape[1])
        return actions if self.clip is None else actions.clamp(self.clip.low, self.clip.high)


def one_hot(indices: Tensor, width: int) -> Tensor:
    """Return float32 rows (N, width) of zeros, with a one at each index of `indices` (N,)."""
    return torch.nn.functional.one_hot(indices.long(), width).float()


def _support(distribution: dist.Distribution) -> Any:
    try:
        return distribution.support
    except NotImplementedError:
        return None


def on_cpu(distribution: dist.Distribution) -> dist.Distribution:
    """Return the distribution with its parameters, and those of its parts, on the CPU, and without value checks."""
    moved = copy.copy(distribution)
    moved._validate_args = False
    for name, part in vars(moved).items():
        if isinstance(part, Tensor):
            vars(moved)[name] = part.cpu()
        elif isinstance(part, dist.Distribution):
            vars(moved)[name] = on_cpu(part)
    return moved


def to_array(value: Any) -> np.ndarray:
    """Return the values as an array of floats or integers, or as one of dtype object if they are not that."""
    if isinstance(value, tuple) or (isinstance(value, Tensor) and (value.is_meta or value.layout != torch.strided)):
        return np.empty(0, object)
    array = as_numbers(value)
    return array if array.dtype.kind in "fiu" else np.empty(0, object)


def read_output(name: str, value: Any, states: int, source: Tensor | None, action_count: int | None) -> Output:
    """Read the value that a policy returned for a number of states, which are the rows `source` (N,) of the data."""
    reader = _Reader(name, states, source, action_count)
    if isinstance(value, Probabilities):
        return reader.probabilities(reader.tensor(value.p))
    if isinstance(value, dist.Categorical | dist.OneHotCategorical):
        return reader.probabilities(reader.tensor(value.probs))
    if isinstance(value, dist.Distribution):
        return reader.distribution(value)
    if isinstance(value, Gaussian):
        return reader.gaussian(*value)
    if not hasattr(value, "__array__") and hasattr(value, "mean") and hasattr(value, "stddev"):
        # TensorFlow defines moments as methods, others as attributes.
        return reader.gaussian(*(part() if callable(part) else part for part in (value.mean, value.stddev)))
    return reader.actions(reader.tensor(value))


@dataclass(frozen=True)
class _Reader:
    """Reader of one output, whose errors name the policy and the row of the user's states."""

    name: str
    states: int
    source: Tensor | None
    action_count: int | None

    def error(self, text: str, wrong: Tensor | None = None, hint: str = "") -> ValueError:
        """Return the error of a value, at the first row of `wrong` (N,)."""
        return ValueError(f"policy {self.name!r} returned {text}{_at(wrong, self.source)}{hint}")

    def actions(self, actions: Tensor) -> Output:
        if not actions.is_floating_point():
            return self.indices(actions)
        if self.action_count is not None:
            return self.probabilities(actions)
        return Output("action", self.matrix(actions))

    def indices(self, indices: Tensor) -> Output:
        if indices.dim() == 2 and indices.shape[1] == 1:
            indices = indices[:, 0]
        if self.action_count is not None and indices.shape == (self.states, self.action_count):
            return self.probabilities(indices)  # one-hot
        if indices.shape != (self.states,):
            seen = f"integers of shape {tuple(indices.shape)}, expected ({self.states},) indices"
            raise self.error(f"{seen}; of several actions at once, return one index for each combination")
        if self.action_count is None:
            raise self.error(f"integer actions: {_COUNT}")
        outside = (indices < 0) | (indices >= self.action_count)
        if outside.any():
            raise self.error(f"action {indices[outside][0]}, expected 0 to {self.action_count - 1},", outside)
        return Output("discrete", one_hot(indices, self.action_count))

    def probabilities(self, value: Tensor) -> Output:
        p = self.matrix(value, self.action_count)
        wrong = (p < 0).any(1) | ((p.sum(1) - 1).abs() > 1e-3)
        if wrong.any():
            shown = ", ".join(f"{number:.3g}" for number in p[wrong][0, :6].tolist())
            raise self.error(
                f"values that are not probabilities, [{shown}{', …' if p.shape[1] > 6 else ''}],",
                wrong,
                "; if they are logits, return the index of the largest, or torch.distributions.Categorical(logits=…) "
                "to sample; for a file, pass head='logits' or head='values' (--head …)",
            )
        return Output("discrete", p)

    def gaussian(self, mean: Any, std: Any) -> Output:
        if self.action_count is not None:
            raise self.error("a continuous distribution, expected probabilities or indices (action_count is set)")
        mean, std = self.matrix(self.tensor(mean)), self.tensor(std).float()
        if std.shape == (self.states,) and mean.shape[1] == 1:  # wider actions: one number for each of their columns
            std = std[:, None]
        try:
            std = std.broadcast_to(mean.shape).contiguous()
        except RuntimeError:
            shapes = tuple(std.shape), tuple(mean.shape)
            raise self.error(f"a standard deviation of shape {shapes[0]}, expected {shapes[1]}") from None
        if (std < 0).any():
            raise self.error("a negative standard deviation", (std < 0).any(1))
        return Output("gaussian", mean, std)

    def distribution(self, value: dist.Distribution) -> Output:
        kind = type(value).__name__
        try:
            mean, std = value.mean, value.stddev
        except NotImplementedError:
            raise self.error(f"a {kind}, whose mean is unknown; return Gaussian(mean, std) instead") from None
        if getattr(_support(value), "is_discrete", False) or (value.event_shape and value.event_shape == mean.shape):
            raise self.error(
                f"a {kind} of event shape {tuple(value.event_shape)}: return a distribution of continuous actions for "
                "each state, or Probabilities(p) of discrete ones; of several at once, one for each combination"
            )
        return replace(self.gaussian(mean, std), distribution=on_cpu(value))

    def matrix(self, value: Tensor, width: int | None = None) -> Tensor:
        """Return the values as (N, width) float32; N numbers are N actions of width 1."""
        shape = tuple(value.shape)
        if value.dim() == 1:
            value = value[:, None]
        if value.dim() != 2 or len(value) != self.states or value.shape[1] == 0 or width not in (None, value.shape[1]):
            hint = "a policy gets a batch of states and returns one action for each"
            if width is not None and shape in ((self.states,), (self.states, 1)):
                hint = "if these are indices of actions, return or store them as integers"
            raise self.error(f"shape {shape}, expected ({self.states}, {width or 'action width'}); {hint}")
        return value.float().contiguous()

    def tensor(self, value: Any) -> Tensor:
        """Return the values as a float or int64 tensor of their own memory, which a policy may use again."""
        array = to_array(value)
        if array.dtype == object:
            kind = f"{type(value).__name__} of {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
            raise self.error(f"a {kind}, {_EXPECTED}")
        return torch.from_numpy(np.array(array, dtype=np.float32 if array.dtype.kind == "f" else np.int64))


def check_finite(name: str, values: Tensor, source: Tensor | None) -> None:
    """Raise ValueError if values (N, width) are not finite or too large, with the first such row of the user's data."""
    wrong = ~(values.abs() < TOO_LARGE)
    if wrong.any():
        value = float(values[wrong][0])
        excess = f", which exceeds the supported magnitude {TOO_LARGE:g}" if math.isfinite(value) else ""
        raise ValueError(f"policy {name!r} returned {value:g}{_at(wrong.any(1), source)}{excess}")


def _at(wrong: Tensor | None, source: Tensor | None) -> str:
    """Return where the first of the marked rows lies in the user's data."""
    if wrong is None:
        return ""
    first = int(wrong.nonzero()[0])
    return f" at state row {first if source is None else int(source[first])}"
