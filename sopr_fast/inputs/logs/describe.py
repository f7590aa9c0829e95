"""Contents of a log at a glance."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from .keys import OPTIONAL, list_names
from .loading import load_log
from .transitions import Transitions

# What methods need of a log beyond states; importance weighting fits the behaviour where log-probabilities are missing.
_NEEDS = {
    "FQE, SARSA critic, simulator, DualDICE, importance weighting": ("actions", "rewards"),
    "importance weighting by logged probabilities": ("actions", "rewards", "log_probs"),
}
_COLUMNS_SHOWN = 40
_NUMBERS = ("low", "high", "mean", "std")


@dataclass(frozen=True)
class LogDescription:
    """Contents of a log; `str` gives a line for each.

    Attributes:
        rows: Number of steps.
        episodes: Number of episodes; None for states alone.
        verdict: How many episodes there are, how they end and which arrays decided, in words.
        unread: Names of arrays that look like ends of episodes and were not read.
        returns: Least, mean and largest undiscounted return of an episode; None for states alone.
        missing: Parts that the log lacks, named as the arguments of `Transitions.from_arrays`.
        columns: "state 0", …, "action 0", … and "reward" → least, largest, mean value and standard deviation.
    """

    rows: int
    episodes: int | None
    verdict: str
    unread: tuple[str, ...]
    returns: tuple[float, float, float] | None
    missing: tuple[str, ...]
    columns: dict[str, tuple[float, float, float, float]]

    @property
    def unusable(self) -> dict[str, tuple[str, ...]]:
        """Methods that cannot use the log, and the parts that they miss."""
        lacks = {methods: tuple(part for part in parts if part in self.missing) for methods, parts in _NEEDS.items()}
        return {methods: parts for methods, parts in lacks.items() if parts}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary that JSON can hold."""
        return dataclasses.asdict(self) | {"unusable": {key: [*parts] for key, parts in self.unusable.items()}}

    def __str__(self) -> str:
        lines = [f"rows: {self.rows:,}"]
        for part in ("state", "action"):
            own = {name: numbers for name, numbers in self.columns.items() if name.startswith(part)}
            constant = [name.split()[1] for name, (low, high, *_) in own.items() if low == high]
            said = f" (constant: {list_names(constant)})" if constant else ""
            lines += [f"{part} columns: {len(own)}{said}"] if own else []
        if self.returns is None:
            lines.append("read as states alone, since it has no rewards")
        else:
            least, mean, largest = self.returns
            lines += [self.verdict, f"returns of episodes: {least:.6g} to {largest:.6g}, mean {mean:.6g}"]
        if self.unread:
            lines.append(f"not read, though it looks like ends or numbers of episodes: {list_names([*self.unread])}")
        lines.append(f"missing: {_list_parts(self.missing) or 'nothing'}")
        lines += [f"not for {methods}: no {_list_parts(parts)}" for methods, parts in self.unusable.items()]
        width = max(map(len, self.columns))
        lines.append(f"{'column':<{width}}" + "".join(f"  {part:>11}" for part in _NUMBERS))
        for name, numbers in [*self.columns.items()][:_COLUMNS_SHOWN]:
            lines.append(f"{name:<{width}}" + "".join(f"  {value:>11.4g}" for value in numbers))
        more = len(self.columns) - _COLUMNS_SHOWN
        return "\n".join(lines + [f"and {more} more columns"] * (more > 0))


def describe(log: Any) -> LogDescription:
    """Describe a log, which is read into memory: its columns, episodes, returns, and what it lacks for which methods.

    Without next states, returns omit the last reward of each episode that was cut, see `sopr_fast.load_log`.

    Args:
        log: What `sopr_fast.load_log` returns, or takes.

    Raises:
        ImportError, MemoryError, OSError, TypeError, ValueError: See `sopr_fast.load_log`.
    """
    log = load_log(log)
    if not isinstance(log, Transitions):
        states = np.asarray(log)
        return LogDescription(len(states), None, "", (), None, OPTIONAL, _columns(states=states))
    returns = np.add.reduceat(log.rewards.astype(np.float64), log.episodes[:-1])
    return LogDescription(
        len(log),
        len(returns),
        log.verdict,
        log.unread,
        (float(returns.min()), float(returns.mean()), float(returns.max())),
        log.missing,
        _columns(states=log.states, actions=log.actions) | _columns(reward=log.rewards[:, None]),
    )


def _columns(**tables: np.ndarray) -> dict[str, tuple[float, float, float, float]]:
    columns = {}
    for part, values in tables.items():
        statistics = (values.min(0), values.max(0), values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64))
        for i, numbers in enumerate(np.stack(statistics, 1).tolist()):
            columns[part if part == "reward" else f"{part[:-1]} {i}"] = tuple(numbers)
    return columns


def _list_parts(parts: tuple[str, ...]) -> str:
    return ", ".join(parts).replace("_", " ")
