"""What all policies do in all drawn states, as the columns that the model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..runtime.checks import check_integer
from ..runtime.native import threads, torch_on_one_thread
from .actor import Actor
from .output import Output
from .policy import Policy

_PROBE_ROWS = 13  # so odd that no action width is taken for it


@dataclass(frozen=True)
class Layout:
    """The columns a model reads for every policy and state.

    Kind "action": the action (dim_a). "gaussian": mean and standard deviation (2 dim_a), the latter 0 for
    deterministic policies. "discrete": probabilities (dim_a), one-hot for policies that return indices.
    """

    kind: str
    action_dim: int
    width: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Layout:
        return cls(**values)


def probe(policies: Sequence[Policy], states: Tensor, source: Tensor, *, batch_size: int = 16384) -> Layout:
    """The layout of the policies' columns, from what they do in the first few of `states` (N, dim_s).

    If any policy is stochastic, the columns are mean and standard deviation. `batch_size` as of `collect`.

    Raises:
        ValueError, RuntimeError: as `Policy.output`; action widths that differ, discrete beside continuous
        actions.
    """
    few = _few(batch_size)
    states, source = states[few], source[few]
    outputs = [policy.output(states, source) for policy in policies]
    first, name = outputs[0], policies[0].name
    for policy, output in zip(policies, outputs, strict=True):
        if (output.kind == "discrete") != (first.kind == "discrete"):
            kinds = [_describe(o) for o in (output, first)]
            raise ValueError(f"policy {policy.name!r} has {kinds[0]} actions, policy {name!r} {kinds[1]} ones")
        if output.mean.shape != first.mean.shape:
            raise ValueError(
                f"policy {policy.name!r} returned shape {tuple(output.mean.shape)}, "
                f"expected {tuple(first.mean.shape)} as policy {name!r}"
            )
    width = first.mean.shape[1]
    if any(output.kind == "gaussian" for output in outputs):
        return Layout("gaussian", width, 2 * width)
    return Layout(first.kind, width, width)


def check_fit(
    policies: Sequence[Policy], states: Tensor, source: Tensor, layout: Layout, *, batch_size: int = 16384
) -> None:
    """Asks every policy for a few states, so that one that does not fit the layout fails before long work.

    Raises:
        ValueError, RuntimeError: as `collect`.
    """
    few = _few(batch_size)
    for policy in policies:
        _columns(policy, states[few], source[few], layout)


def _few(batch_size: int) -> slice:
    return slice(min(_PROBE_ROWS, check_integer("batch_size", batch_size, 1)))


def collect(
    policies: Sequence[Policy],
    states: Tensor,
    source: Tensor,
    layout: Layout,
    *,
    batch_size: int = 16384,
    progress: Callable[[int], Any] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Shows every state to every policy once, in batches, and returns the model's columns.

    Under kind "action" a stochastic policy contributes its mean. Actors of our own readers act side by side, each on
    one thread, so that what they do does not depend on the number of threads; others act one by one.

    Args:
        states: (U, dim_s) float32 on the CPU.
        source: (U,) int64, the states' rows in the user's data.
        batch_size: most states given to a policy at a time.
        progress: called with 1 after every policy.
        out: to write to, instead of a new tensor.

    Returns:
        (P, U, layout.width) float32 on the CPU.

    Raises:
        ValueError, RuntimeError: as `Policy.output`, with the row in the user's data; actions of another kind
            or width than the layout's.
    """
    batch_size = check_integer("batch_size", batch_size, 1)
    columns = out
    if columns is None:
        columns = torch.empty(len(policies), len(states), layout.width, dtype=torch.float32, device="cpu")

    def fill(i: int) -> None:
        for first in range(0, len(states), batch_size):
            rows = slice(first, first + batch_size)
            columns[i, rows] = _columns(policies[i], states[rows], source[rows], layout)

    ours = [i for i, policy in enumerate(policies) if isinstance(policy, Actor)]
    with torch_on_one_thread(), ThreadPoolExecutor(threads(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        _each(pool.map(fill, ours), progress)
    _each((fill(i) for i in range(len(policies)) if i not in set(ours)), progress)
    return columns


def _each(done: Iterable[None], progress: Callable[[int], Any] | None) -> None:
    for _ in done:
        if progress is not None:
            progress(1)


def _columns(policy: Policy, states: Tensor, source: Tensor, layout: Layout) -> Tensor:
    output = policy.output(states, source)
    if (output.kind == "discrete") != (layout.kind == "discrete"):
        wanted = "discrete" if layout.kind == "discrete" else "continuous"
        raise ValueError(f"policy {policy.name!r} has {_describe(output)} actions, the model reads {wanted} ones")
    if output.mean.shape[1] != layout.action_dim:
        raise ValueError(
            f"policy {policy.name!r} returned shape {tuple(output.mean.shape)}, "
            f"expected {(len(states), layout.action_dim)}"
        )
    if layout.kind != "gaussian":
        return output.mean
    std = torch.zeros_like(output.mean) if output.std is None else output.std
    return torch.cat([output.mean, std], 1)


def _describe(output: Output) -> str:
    return "discrete" if output.kind == "discrete" else "continuous"
