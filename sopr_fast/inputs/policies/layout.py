"""Columns that the model reads of every policy in every drawn state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ...runtime.checks import check_integer
from ...runtime.context import current
from ...runtime.native import threads, torch_on_one_thread
from ...runtime.warn import warn
from .actor import Actor
from .called import Called
from .output import Output
from .policy import Policy
from .widths import check_widths, list_few

_PROBE_ROWS = 13  # unlikely to be mistaken for an action width
_BATCH_ROUNDING = 0.02  # of the largest action: half precision and TF32 round otherwise in batches of other sizes


@dataclass(frozen=True)
class Layout:
    """Layout of the columns that a model reads of every policy in every state.

    Attributes:
        kind: "action": the action. "gaussian": mean and standard deviation, the latter 0 for deterministic policies.
            "discrete": probabilities, one-hot for policies that return indices.
        action_dim: Width of the action, or number of discrete actions.
        width: Number of columns: `action_dim`, or twice that for kind "gaussian".
    """

    kind: str
    action_dim: int
    width: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Layout:
        """Return the layout of which `to_dict` gave the fields."""
        return cls(**values)


def check_actions(policies: Sequence[Policy], layout: Layout, logged: int) -> None:
    """Check that the log's actions, of `logged` columns, are those of the policies' kind.

    Raises:
        ValueError: They have other columns; the message says which would fit.
    """
    wanted = layout.action_dim
    if logged == wanted or (layout.kind == "discrete" and logged == 1):
        return
    fitting = f"an index, or {wanted} columns of 0 and 1" if layout.kind == "discrete" else f"{wanted} columns"
    hint = ""
    if layout.kind != "discrete" and wanted == 2 * logged:
        hint = "; if the files' outputs are means and log standard deviations, pass head='mean_log_std' (--head …)"
    elif layout.kind != "discrete" and logged == 1:
        hint = f"; if the log's are indices, pass action_count={wanted}, and for files head='values' or 'logits'"
    raise ValueError(
        f"the log's actions have {logged} columns, but those of policy {policies[0].name!r} need {fitting}: name the "
        "right ones, such as sopr_fast.load_log(…, columns={'actions': […]}), or pass the states alone to methods "
        f"that need no logged actions{hint}"
    )


def probe(policies: Sequence[Policy], states: Tensor, source: Tensor, *, batch_size: int | None = None) -> Layout:
    """Return the layout of the policies' columns, from their output in the first few states.

    If any policy is stochastic, the columns are mean and standard deviation.

    Args:
        policies: At least one.
        states: (N, dim_s) float32 on the CPU.
        source: (N,) int64, the states' rows in the user's data.
        batch_size: Largest number of states that a policy gets at a time; by default that of `sopr_fast.options`.

    Raises:
        ValueError: A policy returned something wrong, action widths differ, or some actions are discrete and others
            continuous.
        RuntimeError: A policy raised; its error is the cause.

    Warns:
        UserWarning: Policies give different actions when asked again for the same states, in the same or another batch;
            or all actions are whole numbers.
    """
    check_widths(policies, states.shape[1])
    rows = _probe_rows(batch_size)
    states, source = states[rows], source[rows]
    outputs = [policy.output(states, source) for policy in policies]
    first, name = outputs[0], policies[0].name
    for policy, output in zip(policies, outputs, strict=True):
        if (output.kind == "discrete") != (first.kind == "discrete"):
            kinds = [_describe(o) for o in (output, first)]
            raise ValueError(
                f"policy {policy.name!r} has {kinds[0]} actions, policy {name!r} {kinds[1]} ones; if all are discrete, "
                "load known policies and candidates alike by sopr_fast.load_policies(…, action_count=…)"
            )
        if output.mean.shape != first.mean.shape:
            raise ValueError(
                f"policy {policy.name!r} returned shape {tuple(output.mean.shape)}, "
                f"expected {tuple(first.mean.shape)} as policy {name!r}"
            )
    _warn_of_sampling(policies, outputs, states, source)
    _warn_of_indices(policies, outputs)
    width = first.mean.shape[1]
    if any(output.kind == "gaussian" for output in outputs):
        return Layout("gaussian", width, 2 * width)
    return Layout(first.kind, width, width)


def check_fit(
    policies: Sequence[Policy], states: Tensor, source: Tensor, layout: Layout, *, batch_size: int | None = None
) -> None:
    """Ask every policy for a few states, so that one that does not fit the layout fails before long work.

    Args:
        policies: The policies.
        states: (N, dim_s) float32 on the CPU.
        source: (N,) int64, the states' rows in the user's data.
        layout: Layout of the columns.
        batch_size: Largest number of states that a policy gets at a time; by default that of `sopr_fast.options`.

    Raises:
        ValueError, RuntimeError: See `collect`.

    Warns:
        UserWarning: Policies give different actions when asked again for the same states, in the same or another batch.
    """
    check_widths(policies, states.shape[1])
    rows = _probe_rows(batch_size)
    states, source = states[rows], source[rows]
    outputs = [policy.output(states, source) for policy in policies]
    for policy, output in zip(policies, outputs, strict=True):
        _columns(policy, output, layout)
    _warn_of_sampling(policies, outputs, states, source)


def _probe_rows(batch_size: int | None) -> slice:
    return slice(min(_PROBE_ROWS, _checked(batch_size)))


def _checked(batch_size: int | None) -> int:
    return current().batch_size if batch_size is None else check_integer("batch_size", batch_size, 1)


def _warn_of_sampling(policies: Sequence[Policy], outputs: Sequence[Output], states: Tensor, source: Tensor) -> None:
    """Warn of policies that answer `states` otherwise than in `outputs`, or otherwise in another batch."""
    other = torch.arange(len(states) - 1, (len(states) - 1) // 2, -1, device="cpu")  # none of a single state
    sampling, mixing = [], []
    for policy, output in zip(policies, outputs, strict=True):
        if not isinstance(policy, Called):
            continue
        before, after = output.mean, policy.output(states, source).mean
        if after.shape != before.shape or not torch.allclose(after, before, rtol=1e-3, atol=1e-5):
            sampling.append(policy.name)
        elif len(other):
            after, scale = policy.output(states[other], source[other]).mean, before.abs().amax(0)
            if after.shape[1:] != scale.shape or ((after - before[other]).abs() > _BATCH_ROUNDING * scale + 1e-5).any():
                mixing.append(policy.name)
    if sampling:
        warn(
            f"policies {list_few(sampling)} give different actions when asked twice for the same states: they sample, "
            "or depend on earlier calls. Return the mean action (for Stable-Baselines3, call predict with "
            "deterministic=True) or the distribution"
        )
    if mixing:
        warn(
            f"policies {list_few(mixing)} give different actions for the same states in another batch: they use "
            "statistics of the batch, or read its rows as a sequence. Answer each state on its own"
        )


def _warn_of_indices(policies: Sequence[Policy], outputs: Sequence[Output]) -> None:
    """Warn if all policies return whole numbers, which may be indices of discrete actions."""
    means = [output.mean for output in outputs if output.kind == "action"]
    if len(means) < len(outputs) or any((mean != mean.abs().round()).any() for mean in means):
        return
    vary = any((mean != mean[0]).any() for mean in means)
    if vary and (means[0].shape[1] == 1 or max(mean.max() for mean in means) > 1):  # not several of 0 and 1
        warn(
            f"policies {list_few([policy.name for policy in policies])} return whole numbers, which are taken as "
            "continuous actions: if they are indices, return integers and pass action_count (--action-count)"
        )


def collect(
    policies: Sequence[Policy],
    states: Tensor,
    source: Tensor,
    layout: Layout,
    *,
    batch_size: int | None = None,
    progress: Callable[[int], Any] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the columns of every policy in every state; each policy sees each state once, in batches.

    Under kind "action", a stochastic policy contributes its mean. Actors read from files act in parallel, each on one
    thread, so that their actions do not depend on the number of threads; other policies act one after another.

    Args:
        policies: The policies.
        states: (U, dim_s) float32 on the CPU.
        source: (U,) int64, the states' rows in the user's data.
        layout: Layout of the columns.
        batch_size: Largest number of states that a policy gets at a time; by default that of `sopr_fast.options`.
        progress: Called with 1 after every policy.
        out: Tensor to write to, instead of a new one.

    Returns:
        (P, U, layout.width) float32 on the CPU.

    Raises:
        ValueError: A policy returned something wrong, or actions of another kind or width than the layout's. The
            message names the policy and the row of the user's data.
        RuntimeError: A policy raised; its error is the cause.
    """
    batch_size = _checked(batch_size)
    if out is None:
        out = torch.empty(len(policies), len(states), layout.width, dtype=torch.float32, device="cpu")
    columns = out

    def fill(i: int) -> None:
        for first in range(0, len(states), batch_size):
            rows = slice(first, first + batch_size)
            columns[i, rows] = _columns(policies[i], policies[i].output(states[rows], source[rows]), layout)

    def report() -> None:
        if progress is not None:
            progress(1)

    actors = [i for i, policy in enumerate(policies) if isinstance(policy, Actor)]
    with torch_on_one_thread(), ThreadPoolExecutor(threads(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for _ in pool.map(fill, actors):
            report()
    for i in sorted(set(range(len(policies))) - set(actors)):
        fill(i)
        report()
    return columns


def _columns(policy: Policy, output: Output, layout: Layout) -> Tensor:
    if (output.kind == "discrete") != (layout.kind == "discrete"):
        expected = "discrete" if layout.kind == "discrete" else "continuous"
        raise ValueError(f"policy {policy.name!r} has {_describe(output)} actions, the model reads {expected} ones")
    if output.mean.shape[1] != layout.action_dim:
        shape, expected_shape = tuple(output.mean.shape), (len(output.mean), layout.action_dim)
        raise ValueError(f"policy {policy.name!r} returned shape {shape}, expected {expected_shape}")
    if layout.kind != "gaussian":
        return output.mean
    std = torch.zeros_like(output.mean) if output.std is None else output.std
    return torch.cat([output.mean, std], 1)


def _describe(output: Output) -> str:
    return "discrete" if output.kind == "discrete" else "continuous"
