"""Contents of a log at a glance."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from .keys import Columns, find_parts, list_names
from .loading import has_names, of_parts
from .sources import read_arrays
from .states import load_states
from .transitions import Transitions

# What methods need of a log beyond states; importance weighting fits the behaviour where log-probabilities are missing.
_NEEDS = {
    "SOPR-T, nearest policy": (),
    "FQE, SARSA critic, simulator, DualDICE, importance weighting": ("actions", "rewards"),
    "importance weighting by logged probabilities": ("actions", "rewards", "log_probs"),
}
_COLUMNS_SHOWN = 40
_SAME = {"dones": "terminals", "last": "terminals", "first": "terminals", "probabilities": "log_probs"}
_PARTS = ("actions", "rewards", "next_states", "terminals", "timeouts", "log_probs")


@dataclass(frozen=True)
class Column:
    """Values of one column of a log.

    Attributes:
        name: "state 0", …, "action 0", … or "reward".
        low: Least value.
        high: Largest value.
        mean: Mean.
        std: Standard deviation.
    """

    name: str
    low: float
    high: float
    mean: float
    std: float


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
        columns: Range and spread of every column of states, actions and rewards.
        verdict: How many episodes there are, how they end and which arrays decided, in words.
        unread: Names of arrays that look like ends of episodes and were not read.
    """

    rows: int
    episodes: int | None
    state_dim: int
    action_dim: int | None
    constant_states: tuple[int, ...]
    constant_actions: tuple[int, ...]
    returns: tuple[float, float, float] | None
    missing: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    verdict: str = ""
    unread: tuple[str, ...] = ()

    @property
    def unusable(self) -> dict[str, tuple[str, ...]]:
        """Methods that cannot use the log, and the parts that they miss."""
        lacks = {methods: tuple(part for part in parts if part in self.missing) for methods, parts in _NEEDS.items()}
        return {methods: parts for methods, parts in lacks.items() if parts}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can hold."""
        return dataclasses.asdict(self) | {"unusable": {key: [*parts] for key, parts in self.unusable.items()}}

    def __str__(self) -> str:
        lines = [f"rows: {self.rows:,}", f"state columns: {self.state_dim}{_list_constant(self.constant_states)}"]
        if self.action_dim is not None:
            lines.append(f"action columns: {self.action_dim}{_list_constant(self.constant_actions)}")
        if self.episodes is not None:
            lines.append(f"episodes: {self.verdict}")
        if self.returns is not None:
            least, mean, largest = self.returns
            lines.append(f"returns of episodes: {least:.6g} to {largest:.6g}, mean {mean:.6g}")
        if self.unread:
            lines.append(f"not read, though it looks like ends: {list_names([*self.unread])}")
        lines.append(f"missing: {_list_parts(self.missing) or 'nothing'}")
        lines += [f"not for {methods}: no {_list_parts(parts)}" for methods, parts in self.unusable.items()]
        return "\n".join(lines + self._table())

    def _table(self) -> list[str]:
        """Return a line for each column."""
        if not self.columns:
            return []
        width = max(len(column.name) for column in self.columns)
        head = f"{'column':<{width}}" + "".join(f"  {part:>11}" for part in ("low", "high", "mean", "std"))
        lines = [
            f"{column.name:<{width}}"
            + "".join(f"  {value:>11.4g}" for value in (column.low, column.high, column.mean, column.std))
            for column in self.columns[:_COLUMNS_SHOWN]
        ]
        more = len(self.columns) - _COLUMNS_SHOWN
        return [head, *lines, *([f"and {more} more columns"] if more > 0 else [])]


def describe(log: Any, *, columns: Columns | None = None, max_episode_steps: int | None = None) -> LogDescription:
    """Describe a log, which is read into memory: its columns, episodes, returns, and what it lacks for which methods.

    Without next states, returns omit the last reward of each episode that was cut, see `sopr_fast.load_log`.

    Args:
        log: Anything that `sopr_fast.load_log` takes.
        columns: See `sopr_fast.load_log`.
        max_episode_steps: See `sopr_fast.load_log`.

    Raises:
        ImportError, MemoryError, OSError, TypeError, ValueError: See `sopr_fast.load_log`.
    """
    if isinstance(log, Transitions):
        return _of_transitions(log, ("log_probs",) if log.log_probs is None else ())
    present: set[str] = set()
    if has_names(log):
        arrays, where = read_arrays(log)
        parts = find_parts(arrays, columns, where)
        present = {_SAME.get(part, part) for part in parts.arrays}
        read = of_parts(arrays, parts, columns, max_episode_steps)
    else:
        read = load_states(log)
    missing = tuple(part for part in _PARTS if part not in present)
    if isinstance(read, Transitions):
        return _of_transitions(read, missing)
    states = np.asarray(read)
    constant, table = _constant_columns(states), _columns("state", states)
    return LogDescription(len(states), None, states.shape[1], None, constant, (), None, missing, table)


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
        columns=(
            *_columns("state", log.states),
            *_columns("action", log.actions),
            *_columns("reward", log.rewards[:, None]),
        ),
        verdict=log.verdict,
        unread=log.unread,
    )


def _constant_columns(values: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero((values == values[0]).all(0)).tolist())


def _columns(part: str, values: np.ndarray) -> tuple[Column, ...]:
    names = [part] if part == "reward" else [f"{part} {i}" for i in range(values.shape[1])]
    table = (values.min(0), values.max(0), values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64))
    return tuple(
        Column(name, *map(float, numbers))
        for name, *numbers in zip(names, *(row.tolist() for row in table), strict=True)
    )


def _list_parts(parts: tuple[str, ...]) -> str:
    return ", ".join(parts).replace("_", " ")


def _list_constant(columns: tuple[int, ...]) -> str:
    return f" (constant: {list_names([str(column) for column in columns])})" if columns else ""
