"""Columns that the model reads of every policy in every drawn state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...runtime.native import threads, torch_on_one_thread
from ...runtime.options import current
from ...runtime.warn import warn
from ..logs.keys import list_names
from .actor import Actor
from .callables import Called
from .output import Output
from .policy import Policy

_OTHER_UNITS = 2  # a median this many times larger than the 99 % quantile of the other side
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
        "right ones by sopr_fast.load_log(…, columns={'actions': […]}) (--columns actions=…), or pass only "
        f"the states to methods that need no logged actions{hint}"
    )


def warn_of_units(columns: Tensor, logged: Tensor, layout: Layout) -> None:
    """Warn of continuous actions in the log that seem to be in other units than those of the policies.

    They seem so if in every column the median magnitude of one side is more than twice the 99 % quantile of the other.

    Args:
        columns: (P, N, layout.width) columns of the policies.
        logged: (M, dim_a) logged actions.
        layout: Layout of the columns.

    Warns:
        UserWarning: They seem to be in other units.
    """
    if layout.kind == "discrete":
        return
    acted = columns[:, :, : layout.action_dim].reshape(-1, layout.action_dim)
    (usual, most), (typical, limit) = (
        [np.quantile(values.abs().numpy(), share, axis=0) for share in (0.5, 0.99)] for values in (acted, logged)
    )
    differs = (typical > _OTHER_UNITS * most) | (usual > _OTHER_UNITS * limit)
    if (differs & (most > 0) & (limit > 0)).all():
        warn(
            f"the logged actions are {typical[0]:.3g} in their first column on the median, without sign, those of the "
            f"policies {usual[0]:.3g}: if the units differ, scale the logged actions to those of the policies"
        )


def probe(policies: Sequence[Policy], states: Tensor, source: Tensor, layout: Layout | None = None) -> Layout:
    """Return the layout of the policies' columns, from their output in the first few states.

    If any policy is stochastic, the columns are mean and standard deviation. A policy that does not fit fails here,
    before long work.

    Args:
        policies: At least one.
        states: (N, dim_s) float32 on the CPU.
        source: (N,) int64, the states' rows in the user's data.
        layout: Layout that the policies must fit, that of a model.

    Raises:
        ValueError: A policy returned something wrong, action widths differ, or some actions are discrete and others
            continuous.
        RuntimeError: A policy raised; its error is the cause.

    Warns:
        UserWarning: Policies give different actions when asked again for the same states, in the same or another batch;
            or all actions are whole numbers.
    """
    check_widths(policies, states.shape[1])
    rows = slice(min(_PROBE_ROWS, current().batch_size))
    states, source = states[rows], source[rows]
    outputs = [policy.output(states, source) for policy in policies]
    whose = "the model"
    if layout is None:
        whose, width = f"policy {policies[0].name!r}", outputs[0].mean.shape[1]
        layout = Layout(outputs[0].kind, width, width)
        if layout.kind != "discrete" and any(output.kind == "gaussian" for output in outputs):
            layout = Layout("gaussian", width, 2 * width)
    pairs = zip(policies, outputs, strict=True)
    columns = torch.stack([_columns(policy, output, layout, whose) for policy, output in pairs])
    warn_of_answers(policies, columns, states, source, layout)
    return layout


def check_widths(policies: Sequence[Policy], width: int) -> None:
    """Check that every policy of known width reads states of the log's width.

    Raises:
        ValueError: Some do not; the message names them and the widths that they read.
    """
    others = [f"{policy.name} reads {policy.state_dim}" for policy in policies if policy.state_dim not in (None, width)]
    if others:
        raise ValueError(
            f"the log's states have {width} columns, but {len(others)} of {len(policies)} policies read another "
            f"number: {list_names(others)}; if the log is of their environment, choose its columns by "
            "sopr_fast.load_log(…, columns={'states': […]}) (--columns states=…); if not, leave these policies out"
        )


def warn_of_answers(
    policies: Sequence[Policy], columns: Tensor, states: Tensor, source: Tensor, layout: Layout
) -> None:
    """Ask policies again in a few states, and warn of answers that differ from their columns or are whole numbers.

    Warns:
        UserWarning: Policies give different actions when asked again for the same states, in the same or another batch;
            or all actions are whole numbers.
    """
    means = columns[:, : min(_PROBE_ROWS, current().batch_size), : layout.action_dim]
    few = torch.arange(means.shape[1] - 1, (means.shape[1] - 1) // 2, -1, device="cpu")  # none of a single state
    few = few if len(few) else torch.arange(means.shape[1], device="cpu")
    sampling, mixing = [], []
    for policy, before in zip(policies, means, strict=True):
        if not isinstance(policy, Called):
            continue
        after, again = (policy.output(states[few], source[few]).mean for _ in range(2))
        scale = before.abs().amax(0)
        if after.shape != again.shape or not torch.allclose(after, again, rtol=1e-3, atol=1e-5):
            sampling.append(policy.name)
        elif after.shape[1:] != scale.shape or ((after - before[few]).abs() > _BATCH_ROUNDING * scale + 1e-5).any():
            mixing.append(policy.name)
    if sampling:
        warn(
            f"policies {list_names(sampling)} give different actions when asked twice for the same states: they "
            "sample, or depend on earlier calls. Return the mean action (for Stable-Baselines3, call predict with "
            "deterministic=True) or the distribution"
        )
    if mixing:
        warn(
            f"policies {list_names(mixing)} give different actions for the same states in another batch: they use "
            "statistics of the batch, or read its rows as a sequence. Answer each state on its own"
        )
    if len(means) and layout.kind != "discrete" and (means == means.abs().round()).all():
        vary = (means != means[:, :1]).any()
        if vary and (layout.action_dim == 1 or means.max() > 1):  # not several of 0 and 1
            warn(
                f"policies {list_names([policy.name for policy in policies])} return whole numbers, which are taken as "
                "continuous actions: if they are indices, return integers and pass action_count (--action-count)"
            )


def collect(
    policies: Sequence[Policy],
    states: Tensor,
    source: Tensor,
    layout: Layout,
    *,
    progress: Callable[[int], Any] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the columns of every policy in every state; each policy sees each state once.

    A policy gets at most the `batch_size` of `sopr_fast.options` states at a time.
    Under kind "action", a stochastic policy contributes its mean. Actors read from files act in parallel, each on one
    thread, so that their actions do not depend on the number of threads; other policies act one after another.

    Args:
        policies: The policies.
        states: (U, dim_s) float32 on the CPU.
        source: (U,) int64, the states' rows in the user's data.
        layout: Layout of the columns.
        progress: Called with 1 after every policy.
        out: Tensor to write to, instead of a new one.

    Returns:
        (P, U, layout.width) float32 on the CPU.

    Raises:
        ValueError: A policy returned something wrong, or actions of another kind or width than the layout's. The
            message names the policy and the row of the user's data.
        RuntimeError: A policy raised; its error is the cause.
    """
    batch_size = current().batch_size
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


def _columns(policy: Policy, output: Output, layout: Layout, whose: str = "the model") -> Tensor:
    is_discrete = output.kind == "discrete"
    if is_discrete != (layout.kind == "discrete"):
        kinds = ("discrete", "continuous") if is_discrete else ("continuous", "discrete")
        raise ValueError(
            f"policy {policy.name!r} has {kinds[0]} actions, {whose} {kinds[1]} ones; if all are discrete, load known "
            "policies and candidates alike by sopr_fast.load_policies(…, action_count=…)"
        )
    if output.mean.shape[1] != layout.action_dim:
        shapes = tuple(output.mean.shape), (len(output.mean), layout.action_dim)
        raise ValueError(f"policy {policy.name!r} returned shape {shapes[0]}, expected {shapes[1]} as {whose}")
    if layout.kind != "gaussian":
        return output.mean
    std = torch.zeros_like(output.mean) if output.std is None else output.std
    return torch.cat([output.mean, std], 1)
