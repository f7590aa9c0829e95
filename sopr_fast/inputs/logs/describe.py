"""Contents of a log at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..accepted import LogLike
from .keys import OPTIONAL, list_names
from .loading import load_log
from .transitions import Transitions

# What methods need of a log beyond states; importance weighting fits the behaviour where log-probabilities are missing.
_NEEDS = {
    "FQE, SARSA critic, simulator, DualDICE, importance weighting": ("actions", "rewards"),
    "importance weighting by logged probabilities": ("actions", "rewards", "log_probs"),
}
_COLUMNS_SHOWN = 40


@dataclass(frozen=True)
class LogDescription:
    """Contents of a log; `str` describes them in words.

    Attributes:
        rows: Number of steps.
        episodes: Number of episodes; None for only states.
        text: Columns, episodes and their returns, what was not read, and what methods miss.
    """

    rows: int
    episodes: int | None
    text: str

    def __str__(self) -> str:
        return self.text


def describe(log: LogLike) -> LogDescription:
    """Describe a log, which is read into memory.

    Without next states, returns omit the last reward of each episode that was cut, see `sopr_fast.load_log`.

    Args:
        log: What `sopr_fast.load_log` returns, or takes.

    Raises:
        ImportError, MemoryError, OSError, TypeError, ValueError: See `sopr_fast.load_log`.
    """
    log = load_log(log)
    if isinstance(log, Transitions):
        returns = np.add.reduceat(log.rewards.astype(np.float64), log.episodes[:-1])
        return LogDescription(len(log), len(returns), _text(log.states, log.missing, log, returns))
    return LogDescription(len(log), None, _text(np.asarray(log), OPTIONAL))


def _text(states: np.ndarray, missing: Sequence[str], log: Transitions | None = None, returns: Any = None) -> str:
    actions = states[:, :0] if log is None else log.actions
    lines = [f"rows: {len(states):,}"]
    for part, values in (("state", states), ("action", actions)):
        constant = np.flatnonzero(values.min(0) == values.max(0)).astype(str).tolist()
        said = f" (constant: {list_names(constant)})" if constant else ""
        lines += [f"{part} columns: {values.shape[1]}{said}"] if values.shape[1] else []
    if log is None:
        lines.append("only states are read, since it has no rewards")
    else:
        lines.append(log.verdict)
        lines.append(f"returns of episodes: {returns.min():.6g} to {returns.max():.6g}, mean {returns.mean():.6g}")
        if log.unread:
            lines.append(f"not read, though it looks like ends or numbers of episodes: {list_names([*log.unread])}")
    lines.append(f"missing: {_list_parts(missing) or 'nothing'}")
    for methods, parts in _NEEDS.items():
        if lacking := [part for part in parts if part in missing]:
            lines.append(f"not for {methods}: no {_list_parts(lacking)}")
    names = [f"state {i}" for i in range(states.shape[1])] + [f"action {i}" for i in range(actions.shape[1])]
    columns = [*states.T, *actions.T, *([] if log is None else [log.rewards])]
    names += ["reward"] * (log is not None)
    width = max(map(len, names))
    lines.append(f"{'column':<{width}}" + "".join(f"  {part:>11}" for part in ("low", "high", "mean", "std")))
    for name, values in list(zip(names, columns, strict=True))[:_COLUMNS_SHOWN]:
        numbers = values.min(), values.max(), values.mean(dtype=np.float64), values.std(dtype=np.float64)
        lines.append(f"{name:<{width}}" + "".join(f"  {value:>11.4g}" for value in numbers))
    more = len(columns) - _COLUMNS_SHOWN
    return "\n".join(lines + [f"and {more} more columns"] * (more > 0))


def _list_parts(parts: Sequence[str]) -> str:
    return ", ".join(parts).replace("_", " ")
