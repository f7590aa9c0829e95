"""Policies next to a log: what must fit, for every method, and facts about both that a reader should see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...runtime.text import list_names
from .policy import Policy

_CHOOSE_COLUMNS = (
    "if the log is of their environment, choose its columns by sopr_fast.load_log(…, columns={'states': […]}); if not, "
    "leave these policies out"
)
_FROM_ONE = "subtract 1 from the log's actions, let policies return such indices, and pass their number as action_count"
_SIMILAR = 1.5  # ranges are shown where both together are wider than this many times the narrower one


def check_widths(policies: Sequence[Policy], width: int, whose: str = "the log", remedy: str = _CHOOSE_COLUMNS) -> None:
    """Raise ValueError if a policy of known width does not read states of this width."""
    others = [f"{policy.name} reads {policy.state_dim}" for policy in policies if policy.state_dim not in (None, width)]
    if others:
        raise ValueError(
            f"{whose}'s states have {width} columns, but {len(others)} of {len(policies)} policies read another "
            f"number: {list_names(others)}; {remedy}"
        )


def check_actions(policies: Sequence[Policy], kind: str, action_dim: int, logged: Any) -> None:
    """Raise ValueError if logged actions are not those of the policies' kind and width, see `Layout`.

    Discrete ones are indices (N,) or (N, 1) from 0, or one-hot (N, action_dim).

    Args:
        policies: At least one.
        kind: Kind of the policies' layout.
        action_dim: Width of the policies' actions, or their number of discrete ones.
        logged: (N,) or (N, width) logged actions, which may lie in a file.
    """
    is_discrete, width = kind == "discrete", int(np.prod(logged.shape[1:]))
    if width != action_dim and not (is_discrete and width == 1):
        hint = ""
        if not is_discrete and action_dim == 2 * width:
            hint = "; of means and log_std, return Gaussian(mean, std)"
        elif not is_discrete and width == 1:
            hint = f"; if the log's are indices, return the index of the largest and pass action_count={action_dim}"
        needed = f"an index, or {action_dim} columns of 0 and 1" if is_discrete else f"{action_dim} columns"
        raise ValueError(
            f"the log's actions have {width} columns, but those of policy {policies[0].name!r} need {needed}: name the "
            "right ones by sopr_fast.load_log(…, columns={'actions': […]}), or pass only the "
            f"states to methods that need no logged actions{hint}"
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
        remedy = "number the actions from 0, as the policies do, or correct action_count"
        if np.isin(index, range(1, action_dim + 1)).all():
            remedy = f"they are numbered from 1: {_FROM_ONE}"
        raise ValueError(f"log: action {index[row]} at row {row} is not an index from 0 to {action_dim - 1}: {remedy}")


def facts(
    policies: Sequence[Policy], kind: str, action_dim: int, columns: np.ndarray, states: np.ndarray, logged: Any
) -> list[str]:
    """Return what a reader should see of policies next to a log: `doubts`, and ranges of actions that differ by half.

    Args:
        policies: P policies.
        kind: Kind of their layout.
        action_dim: Width of their actions, or number of discrete ones.
        columns: (P, n, width) what they do in some states.
        states: (n, dim_s) these states.
        logged: (N, width) logged actions, or None.
    """
    found = doubts(policies, kind, action_dim, columns, states, logged)
    if kind == "discrete" or not isinstance(logged, np.ndarray) or _is_one_hot(logged.reshape(len(logged), -1)):
        return found
    acted, logged = columns[:, :, :action_dim].reshape(-1, action_dim), logged.reshape(len(logged), -1)
    (low, high), (least, most) = ((values.min(0), values.max(0)) for values in (logged, acted))
    together = np.maximum(high, most) - np.minimum(low, least)
    if len(differ := np.flatnonzero(together > _SIMILAR * np.minimum(high - low, most - least))):
        shown = [f"column {k}: {low[k]:.3g} to {high[k]:.3g}, {least[k]:.3g} to {most[k]:.3g}" for k in differ]
        found.append(
            f"logged actions and those of the policies have other ranges, {list_names(shown, 5)}: if the units differ, "
            "scale the logged actions to those of the policies"
        )
    return found


def doubts(
    policies: Sequence[Policy], kind: str, action_dim: int, columns: np.ndarray, states: np.ndarray, logged: Any
) -> list[str]:
    """Return facts about labels and statistics that are rarely meant; see `facts`."""
    found = []
    if states.shape[1] == 1 and (states == np.round(states)).all() and (count := len(np.unique(states))) > 2:
        found.append(f"states are one column of {count} whole numbers: if they are labels, give them one-hot")
    low, high = states.min(0), states.max(0)
    scalings = {policy.name: getattr(policy, "standardisation", None) for policy in policies}
    for name, scaling in scalings.items():
        if scaling is None:
            continue
        mean, std = scaling.mean.numpy(), scaling.std.numpy()
        if len(outside := np.flatnonzero((mean - std < low) | (mean + std > high))):
            k = int(outside[0])
            found.append(
                f"policy {name!r} standardises state column {k} by {mean[k]:.3g} ± {std[k]:.3g}, in the log it "
                f"is {low[k]:.3g} to {high[k]:.3g}: if the log is standardised already, give states as the environment "
                "does"
            )
            break
    if not isinstance(logged, np.ndarray):
        return found
    logged = logged.reshape(len(logged), -1)
    if kind == "discrete":
        if action_dim > 2 and logged.shape[1] == 1 and np.array_equal(np.unique(logged), range(1, action_dim)):
            what = f"no logged action is 0, but all from 1 to {action_dim - 1} occur"
            found.append(f"{what}: if they are numbered from 1, {_FROM_ONE}")
    elif action_dim > 1 and _is_one_hot(logged) and not _is_one_hot(columns[:, :, :action_dim].reshape(-1, action_dim)):
        found.append(
            "the log's actions are one-hot, those of the policies are not: if they are values or logits, return the "
            f"index of the largest and pass action_count={action_dim}"
        )
    return found


def _is_one_hot(actions: np.ndarray) -> bool:
    return bool(np.isin(actions, (0, 1)).all() and (actions.sum(1) == 1).all())
