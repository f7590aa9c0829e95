"""Policies next to a log: what must fit, for every method, and facts about both that a reader should see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...runtime.options import current
from ...runtime.text import counted, list_names
from ...runtime.warn import DoubtfulPolicyWarning, warn
from .callables import Called
from .output import Layout
from .policy import Policy

_CHOOSE_COLUMNS = (
    "if the log is of their environment, choose its columns by sopr_fast.load_log(…, columns={'states': […]}); if not, "
    "leave these policies out"
)
_FROM_ONE = (
    "if they are numbered from 1, subtract 1 from the log's actions, let policies return such indices, and pass their "
    "number as action_count"
)
_PROBE_ROWS = 13  # unlikely to be mistaken for an action width
_ROUNDED_ROWS = 4096  # of which whole numbers are told
_BATCH_ROUNDING = 0.02  # of the largest action: half precision and TF32 round otherwise in batches of other sizes
_WIDER, _NARROWER = 1.5, 0.51  # ranges are shown where policies leave the logged one by half, or fill half of it


def probe(
    policies: Sequence[Policy], states: Tensor, source: Tensor, layout: Layout | None = None, logged: Any = None
) -> Layout:
    """Return the layout of the policies' columns, from their output in the first few states.

    If any policy is stochastic, the columns are mean and standard deviation. A policy that does not fit fails here,
    before long work; see `collect` and `check_actions` for the errors, and `doubtful_answers`, of which it warns.

    Args:
        policies: At least one.
        states: (N, dim_s) float32 on the CPU.
        source: (N,) int64, the states' rows in the user's data.
        layout: Layout that the policies must fit, that of a model.
        logged: (N_all, width) logged actions, if there are any.
    """
    check_widths(policies, states.shape[1])
    rows = slice(min(_PROBE_ROWS, current().batch_size))
    states, source = states[rows], source[rows]
    outputs = [policy.output(states, source) for policy in policies]
    whose = "the model"
    if layout is None:
        whose, (first, *_) = f"policy {policies[0].name!r}", outputs
        is_gaussian = first.kind != "discrete" and any(output.kind == "gaussian" for output in outputs)
        layout = Layout("gaussian" if is_gaussian else first.kind, first.mean.shape[1])
    if logged is not None:
        check_actions(policies, layout, logged)
    pairs = zip(policies, outputs, strict=True)
    columns = torch.stack([layout.columns(policy.name, output, whose) for policy, output in pairs])
    for note in doubtful_answers(policies, columns, states, source, layout):
        warn(note, DoubtfulPolicyWarning)
    return layout


def doubtful_answers(
    policies: Sequence[Policy], columns: Tensor, states: Tensor, source: Tensor, layout: Layout
) -> list[str]:
    """Return notes on policies that answer otherwise in another batch of a few states, or in whole numbers."""
    count = min(_PROBE_ROWS, current().batch_size, columns.shape[1])
    few, notes = torch.arange(count, device="cpu").flip(0)[: max(1, count // 2)], []
    changing = []
    for policy, own in zip(policies, columns[:, :count, : layout.action_dim], strict=True):
        if isinstance(policy, Called):
            after, again = (policy.output(states[few], source[few]).mean for _ in range(2))
            rounding = _BATCH_ROUNDING * own.abs().amax(0) + 1e-5
            is_same = after.shape == again.shape == own[few].shape and torch.allclose(after, again, 1e-3, 1e-5)
            if not is_same or ((after - own[few]).abs() > rounding).any():
                changing.append(policy.name)
    if changing:
        notes.append(
            f"actions of {list_names(changing)} differ when asked again for some of the states: return "
            "the mean action (predict with deterministic=True) or the distribution, and answer each state on its own, "
            "without statistics of the batch or reading its rows as a sequence"
        )
    acted = columns[:, :_ROUNDED_ROWS, 0].numpy()
    is_whole = layout.kind != "discrete" and layout.action_dim == 1 and bool((acted == abs(np.round(acted))).all())
    if is_whole and (acted != acted[:, :1]).any():
        notes.append(
            f"actions of {list_names([policy.name for policy in policies])} are whole numbers, and taken as continuous "
            "ones: if they are indices, return integers, and call load_policies(…, action_count=N)"
        )
    return notes


def check_widths(policies: Sequence[Policy], width: int, whose: str = "the log", remedy: str = _CHOOSE_COLUMNS) -> None:
    """Raise ValueError if a policy of known width does not read states of this width."""
    others = [f"{policy.name} reads {policy.state_dim}" for policy in policies if policy.state_dim not in (None, width)]
    if others:
        raise ValueError(
            f"{whose}'s states have {counted(width, 'column')}, but {len(others)} of {len(policies)} policies read "
            f"another number: {list_names(others)}; {remedy}"
        )


def check_actions(policies: Sequence[Policy], layout: Layout, logged: Any) -> None:
    """Raise ValueError if logged actions (N,) or (N, width), which may lie in a file, are not those of the layout.

    Discrete ones are indices (N,) or (N, 1) from 0, or one-hot (N, action_dim).
    """
    is_discrete, action_dim, width = layout.kind == "discrete", layout.action_dim, int(np.prod(logged.shape[1:]))
    if width != action_dim and not (is_discrete and width == 1):
        needed = f"an index, or {action_dim} columns of 0 and 1" if is_discrete else counted(action_dim, "column")
        raise ValueError(
            f"the log's actions have {counted(width, 'column')}, but those of policy {policies[0].name!r} need "
            f"{needed}: name the right ones by sopr_fast.load_log(…, columns={{'actions': […]}}); of means and "
            "log_std, return torch.distributions.Normal(mean, std); of values of actions, the index of the largest"
        )
    if not is_discrete or action_dim == 1:
        return
    values = np.asarray(logged).reshape(-1, width)
    if width > 1:
        if not np.isin(values, (0, 1)).all() or (values.sum(1) != 1).any():
            shapes = f"indices (N, 1) or one-hot (N, {action_dim})"
            raise ValueError(f"log: discrete actions must be {shapes}, got {values.shape} of other values")
        return
    index = values[:, 0]
    wrong = (index != np.round(index)) | (index < 0) | (index >= action_dim)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"log: action {index[row]} at row {row} is not an index from 0 to {action_dim - 1}: {_FROM_ONE}"
        )


def facts(
    policies: Sequence[Policy], layout: Layout, columns: np.ndarray, states: np.ndarray, logged: Any, rows: np.ndarray
) -> list[str]:
    """Return what a reader should see of policies next to a log: units, labels and statistics that may not be meant.

    Args:
        policies: P policies.
        layout: Layout of their columns.
        columns: (P, n, width) what they do in some states.
        states: (n, dim_s) these states.
        logged: (N, width) logged actions, or None.
        rows: (n,) rows of these states in the logged actions.
    """
    found = [*_of_states(policies, states)]
    if isinstance(logged, np.ndarray):
        logged, acted = logged.reshape(len(logged), -1), columns[:, :, : layout.action_dim]
        found += _of_actions(policies, layout, acted, logged, rows)
    return found


def _of_states(policies: Sequence[Policy], states: np.ndarray) -> Iterator[str]:
    """Yield facts of states (n, dim_s), next to the statistics by which policies standardise them."""
    low, high = states.min(0), states.max(0)
    if states.shape[1] == 1 and (states == np.round(states)).all() and (count := len(np.unique(states))) > 2:
        yield f"states are one column of {count} whole numbers: if they are labels, give them one-hot"
        return
    for policy in policies:
        if (scaling := policy.standardisation) is None:
            continue
        mean, std = scaling.mean.numpy(), scaling.std.numpy()
        if len(outside := np.flatnonzero((mean - std < low) | (mean + std > high))):
            k = int(outside[0])
            yield (
                f"policy {policy.name!r} standardises state column {k} by {mean[k]:.3g} ± {std[k]:.3g}, in the log it "
                f"is {low[k]:.3g} to {high[k]:.3g}: if the log is standardised already, give raw states"
            )
            return


def _of_actions(
    policies: Sequence[Policy], layout: Layout, acted: np.ndarray, logged: np.ndarray, rows: np.ndarray
) -> Iterator[str]:
    """Yield facts of actions (P, n, dim_a) next to logged ones (N, width): labels, ranges and distances."""
    count = layout.action_dim
    if layout.kind == "discrete":
        if count > 2 and logged.shape[1] == 1 and np.array_equal(np.unique(logged), range(1, count)):
            yield f"no logged action is 0, but all from 1 to {count - 1} occur: {_FROM_ONE}"
        return
    if count > 1 and _is_one_hot(logged):
        if not _is_one_hot(acted.reshape(-1, count)):
            yield (
                "the log's actions are one-hot, those of the policies are not: if they are values or logits, return "
                f"the index of the largest and pass action_count={count}"
            )
        return
    (low, high), (least, most) = ((x.min(0) + 0.0, x.max(0) + 0.0) for x in (logged, acted.reshape(-1, count)))
    width, together = high - low, np.maximum(high, most) - np.minimum(low, least)
    if len(differ := np.flatnonzero((together > _WIDER * width) | (most - least < _NARROWER * width))):
        shown = [f"column {k}: {low[k]:.3g} to {high[k]:.3g} and {least[k]:.3g} to {most[k]:.3g}" for k in differ]
        yield (
            f"logged actions and those of the policies have other ranges, {list_names(shown, 5)}: if the units differ, "
            "scale the logged actions to those of the policies"
        )
    there = logged[rows]
    variance = there.var(0, dtype=np.float64)
    varies = variance > 0
    squares = [((own - there) ** 2).mean(0, dtype=np.float64) for own in acted]
    errors = [(square[varies] / variance[varies]).mean() if varies.any() else 0 for square in squares]
    nearest = int(np.argmin(errors))
    if errors[nearest] > 1:
        yield (
            f"no policy acts like the log: the nearest, {policies[nearest].name!r}, is {errors[nearest]:.3g} times "
            "as far from the logged actions as their mean is (squared distances); if one acted in the log, states "
            "or actions have other units, as where states are standardised twice"
        )


def _is_one_hot(actions: np.ndarray) -> bool:
    return bool(np.isin(actions, (0, 1)).all() and (actions.sum(1) == 1).all())
