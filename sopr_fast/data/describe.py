"""Contents of a log at a glance."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .keys import KEYS, find_key, list_names
from .loading import NEEDED, find_names, from_mapping, read_arrays
from .states import as_states
from .tables import is_frame
from .transitions import Transitions


@dataclass(frozen=True)
class LogDescription:
    """Contents of a log; `str` gives a line for each.

    Attributes:
        rows: Number of steps.
        episodes: Number of episodes; None without transitions, as are all of the following that need them.
        state_dim: Columns of the states.
        action_dim: Columns of the actions.
        constant_states: Columns of the states that hold the same value in every row.
        constant_actions: As `constant_states`, of the actions.
        returns: Least, mean and largest undiscounted return of an episode.
        missing: Parts that the log lacks, named as the arguments of `Transitions.from_arrays`.
    """

    rows: int
    episodes: int | None
    state_dim: int
    action_dim: int | None
    constant_states: tuple[int, ...]
    constant_actions: tuple[int, ...]
    returns: tuple[float, float, float] | None
    missing: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can hold."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [f"rows: {self.rows:,}", f"state columns: {self.state_dim}{_list_constant(self.constant_states)}"]
        if self.action_dim is not None:
            lines.append(f"action columns: {self.action_dim}{_list_constant(self.constant_actions)}")
        if self.episodes is not None:
            lines.append(f"episodes: {self.episodes:,}")
        if self.returns is not None:
            least, mean, largest = self.returns
            lines.append(f"returns of episodes: {least:.6g} to {largest:.6g}, mean {mean:.6g}")
        lines.append(f"missing: {', '.join(self.missing).replace('_', ' ') or 'nothing'}")
        return "\n".join(lines)


def describe(log: Any, *, max_episode_steps: int | None = None) -> LogDescription:
    """Describe a log, which is read into memory: its size, constant columns, returns, and what it lacks.

    Without next states, returns omit the last reward of each timed-out episode, whose step `sopr_fast.data.load` drops.

    Args:
        log: Transitions as for `sopr_fast.data.load`, or states as for `sopr_fast.Subsets.draw`.
        max_episode_steps: See `sopr_fast.data.load`.

    Raises:
        ImportError, MemoryError, OSError, TypeError, ValueError: See `sopr_fast.data.load`.
    """
    if isinstance(log, Transitions):
        return _of_transitions(log, ("log_probs",) if log.log_probs is None else ())
    missing = tuple(part for part in KEYS if part != "states")
    if _has_names(log):
        arrays, where = read_arrays(log)
        names = find_names(arrays)
        missing = tuple(part for part in KEYS if part not in names)
        if not {*NEEDED} & {*missing}:
            return _of_transitions(from_mapping(arrays, where, max_episode_steps), missing)
        log = arrays[find_key("states", arrays, where)]
    states = np.asarray(as_states(log))
    return LogDescription(len(states), None, states.shape[1], None, _constant_columns(states), (), None, missing)


def _has_names(log: Any) -> bool:
    """Return whether a log consists of named arrays."""
    if isinstance(log, str | os.PathLike):
        return Path(log).suffix != ".npy"
    return isinstance(log, Mapping) or is_frame(log) or hasattr(log, "iterate_episodes")


def _of_transitions(log: Transitions, missing: tuple[str, ...]) -> LogDescription:
    returns = np.add.reduceat(log.rewards.astype(np.float64), log.episodes[:-1])
    return LogDescription(
        rows=len(log),
        episodes=len(returns),
        state_dim=log.states.shape[1],
        action_dim=log.actions.shape[1],
        constant_states=_constant_columns(log.states),
        constant_actions=_constant_columns(log.actions),
        returns=(float(returns.min()), float(returns.mean()), float(returns.max())),
        missing=missing,
    )


def _constant_columns(values: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero((values == values[0]).all(0)).tolist())


def _list_constant(columns: tuple[int, ...]) -> str:
    return f" (constant: {list_names([str(column) for column in columns])})" if columns else ""
