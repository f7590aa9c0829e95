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

from ...runtime.arrays import fill_masked
from ...runtime.checks import TOO_LARGE
from ...runtime.process import fork_safe_lock
from .unsupported import WORDS

_global_generator = fork_safe_lock()


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
    """Bounds of the actions.

    Attributes:
        low: (dim_a,) float32.
        high: (dim_a,) float32.
    """

    low: Tensor
    high: Tensor

    def clip(self, actions: Tensor) -> Tensor:
        """Clip actions to the bounds."""
        return actions.clamp(self.low, self.high)

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
        if self.distribution is not None:
            return self.distribution
        if self.std is not None:
            return dist.Normal(self.mean, self.std, validate_args=False)
        if self.kind == "discrete":
            return dist.OneHotCategorical(self.mean, validate_args=False)
        return None

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log density (N,) of actions (N, dim_a), or the log probability of one-hot ones.

        The policy must have a density.
        """
        density = self.density()
        assert density is not None
        if len(density.batch_shape + density.event_shape) == 1:  # over N numbers instead of (N, 1)
            actions = actions[:, 0]
        log_prob = density.log_prob(actions)
        if self.distribution is not None:
            # Outside the support, a formula may give any number.
            log_prob = log_prob.masked_fill(~_is_supported(density, actions), -math.inf)
        return log_prob.sum(1) if log_prob.dim() == 2 else log_prob

    def sample(self, seed: int) -> Tensor:
        """Return actions (N, dim_a) float32 sampled from the density and clipped. The policy must have a density."""
        actions = self._draw(seed)
        return actions if self.clip is None else self.clip.clip(actions)

    def _draw(self, seed: int) -> Tensor:
        if self.distribution is not None:
            # Torch's distributions sample from the global generator only.
            with _global_generator, torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                return self.distribution.sample().float().reshape(self.mean.shape)
        generator = torch.Generator().manual_seed(seed)
        if self.std is not None:
            return torch.normal(self.mean, self.std, generator=generator)
        return one_hot(torch.multinomial(self.mean, 1, generator=generator)[:, 0], self.mean.shape[1])


def one_hot(indices: Tensor, width: int) -> Tensor:
    """Return float32 rows (N, width) of zeros, with a one at each index of `indices` (N,)."""
    return torch.nn.functional.one_hot(indices.long(), width).float()


def _support(distribution: dist.Distribution) -> Any:
    try:
        return distribution.support
    except NotImplementedError:
        return None


def _is_supported(distribution: dist.Distribution, actions: Tensor) -> Tensor:
    """Return whether actions lie in the support, in the shape of the log density; True where it is unknown."""
    support = _support(distribution)
    return torch.ones((), dtype=torch.bool, device="cpu") if support is None else support.check(actions)


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


def read_output(name: str, value: Any, states: int, source: Tensor | None, action_count: int | None) -> Output:
    """Read the value that a policy returned for a batch of states.

    Tensors and arrays are actions. Integers of shape (N,) are indices of discrete actions; floats are probabilities if
    `action_count` is set. Objects with a mean and a standard deviation are distributions; torch's categorical
    distributions are probabilities.

    Args:
        name: Name of the policy.
        value: The returned value.
        states: Number of states in the batch.
        source: (N,) int64, the states' rows in the user's data, named in messages.
        action_count: Number of discrete actions, or None.

    Raises:
        ValueError: The value has a wrong type, shape, dtype or content.
    """
    reader = _Reader(name, states, source, action_count)
    if isinstance(value, Probabilities):
        return reader.probabilities(value.p)
    if isinstance(value, Gaussian):
        return reader.gaussian(*value)
    if isinstance(value, dist.Categorical | dist.OneHotCategorical):
        return reader.probabilities(value.probs)
    if isinstance(value, dist.Distribution):
        return reader.distribution(value)
    is_array = isinstance(value, Tensor) or hasattr(value, "__array__")
    spread = next((key for key in ("stddev", "std", "scale") if hasattr(value, key)), None)
    if not is_array and spread and hasattr(value, "mean"):
        # scipy and TensorFlow define moments as methods, most others as attributes.
        mean, std = (part() if callable(part) else part for part in (value.mean, getattr(value, spread)))
        return reader.gaussian(mean, std)
    return reader.actions(value)


class _Reader:
    """Reader of one output, whose errors name the policy and the row of the user's states."""

    def __init__(self, name: str, states: int, source: Tensor | None, action_count: int | None):
        self.name, self.states, self.source, self.action_count = name, states, source, action_count

    def error(self, text: str) -> ValueError:
        return ValueError(f"policy {self.name!r} returned {text}")

    def row(self, index: int) -> int:
        return index if self.source is None else int(self.source[index])

    def actions(self, value: Any) -> Output:
        actions = self.tensor(value)
        if not actions.is_floating_point():
            return self.indices(actions)
        if self.action_count is not None:
            return self.probabilities(actions)
        return Output("action", self.matrix(actions))

    def indices(self, indices: Tensor) -> Output:
        if indices.dim() == 2 and indices.shape[1] == 1:
            indices = indices[:, 0]
        if self.action_count is not None and indices.shape == (self.states, self.action_count):
            return self.probabilities(indices.float())  # one-hot
        if indices.shape != (self.states,):
            several = "; of several actions at once, return one index for each combination"
            hint = several if indices.dim() == 2 and len(indices) == self.states else ""
            raise self.error(
                f"integers of shape {tuple(indices.shape)}, expected ({self.states},) indices of actions{hint}"
            )
        if self.action_count is None:
            raise self.error(f"integer actions: {_COUNT}")
        outside = (indices < 0) | (indices >= self.action_count)
        if outside.any():
            first = int(outside.nonzero()[0])
            limit = self.action_count - 1
            raise self.error(f"action {indices[first]} at state row {self.row(first)}, expected 0 to {limit}")
        return Output("discrete", one_hot(indices, self.action_count))

    def probabilities(self, value: Any) -> Output:
        p = self.matrix(self.tensor(value), self.action_count)
        wrong = (p < 0).any(1) | ((p.sum(1) - 1).abs() > 1e-3)
        if wrong.any():
            first = int(wrong.nonzero()[0])
            raise self.error(
                f"values at state row {self.row(first)} that are not probabilities: {_short(p[first])}; "
                "if they are logits, return the index of the largest, or "
                "torch.distributions.Categorical(logits=…) to sample; for a file, pass head='logits' "
                "or head='values' (--head …)"
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
            raise self.error(
                f"a standard deviation of shape {tuple(std.shape)}, expected {tuple(mean.shape)}"
            ) from None
        if (std < 0).any():
            first = int((std < 0).any(1).nonzero()[0])
            raise self.error(f"a negative standard deviation at state row {self.row(first)}")
        return Output("gaussian", mean, std)

    def distribution(self, value: dist.Distribution) -> Output:
        try:
            mean, std = value.mean, value.stddev
        except NotImplementedError:
            raise self.error(
                f"a {type(value).__name__}, whose mean is unknown; return Gaussian(mean, std) instead"
            ) from None
        if getattr(_support(value), "is_discrete", False):
            raise self.error(
                f"a {type(value).__name__}: return Probabilities(p) of discrete actions, or their indices; of several "
                "actions at once, one for each combination"
            )
        if value.event_shape and value.event_shape == mean.shape:
            raise self.error(
                f"one {type(value).__name__} over all states together, of event shape {tuple(mean.shape)}, expected "
                f"batch shape ({self.states},) or ({self.states}, action width)"
            )
        output = self.gaussian(mean, std)
        return replace(output, distribution=on_cpu(value))

    def matrix(self, value: Tensor, width: int | None = None) -> Tensor:
        """Return the values as (N, width) float32; N numbers are N actions of width 1."""
        shape = tuple(value.shape)
        if value.dim() == 1:
            value = value[:, None]
        if value.dim() != 2 or len(value) != self.states or value.shape[1] == 0 or width not in (None, value.shape[1]):
            is_batch = value.dim() > 0 and len(value) == self.states
            hint = "" if is_batch else "; a policy gets a batch of states and returns one action for each"
            if width is not None and shape in ((self.states,), (self.states, 1)):
                hint = "; if these are indices of actions, return or store them as integers"
            raise self.error(f"shape {shape}, expected ({self.states}, {width or 'action width'}){hint}")
        return value.float().contiguous()

    def tensor(self, value: Any) -> Tensor:
        """Return the values as a float or int64 tensor on the CPU."""
        if not isinstance(value, Tensor):
            array = np.asarray(fill_masked(value)) if not isinstance(value, tuple | dict | set) else np.empty(0, object)
            if array.dtype.kind in "US" or (array.dtype.kind == "O" and any(isinstance(x, str) for x in array.flat)):
                raise self.error(WORDS)
            if array.dtype.kind not in "fiu":
                kind = f"a {type(value).__name__}" if array.dtype.kind == "O" else f"dtype {array.dtype}"
                only = "; pass a callable of states that returns only the actions" if array.dtype.kind == "O" else ""
                raise self.error(f"{kind}, expected {_EXPECTED}{only}")
            value = torch.from_numpy(np.array(array, dtype=np.float32 if array.dtype.kind == "f" else np.int64))
        if value.dtype == torch.bool or value.is_complex() or value.is_meta or value.layout != torch.strided:
            kind = f"a tensor of {value.dtype} and {value.layout} on {value.device}"
            raise self.error(f"{kind}, expected {_EXPECTED}")
        value = value.detach().cpu().clone()  # a policy may return the same memory again
        return value if value.is_floating_point() else value.long()


_COUNT = "load the policies by sopr_fast.load_policies(…, action_count=N) (--action-count N), N discrete actions"
_EXPECTED = "an array or tensor of actions, or a distribution"


def check_finite(name: str, values: Tensor, source: Tensor | None) -> None:
    """Check that values (N, width) are finite and not too large.

    Raises:
        ValueError: A value is not; the message names the policy and the first such row of the user's data.
    """
    valid = values.abs() < TOO_LARGE
    if valid.all():
        return
    first = int((~valid.all(1)).nonzero()[0])
    value = float(values[first][~valid[first]][0])
    row = first if source is None else int(source[first])
    excess = f", which exceeds the supported magnitude {TOO_LARGE:g}" if math.isfinite(value) else ""
    raise ValueError(f"policy {name!r} returned {value:g} at state row {row}{excess}")


def _short(values: Tensor) -> str:
    head = ", ".join(f"{v:.3g}" for v in values[:6].tolist())
    return f"[{head}{', …' if len(values) > 6 else ''}]"
