"""Contents of a log at a glance."""

from __future__ import annotations

import numpy as np

from ..accepted import LogLike
from .keys import list_names
from .loading import load_log
from .transitions import Transitions

_COLUMNS_SHOWN = 40


def describe(log: LogLike) -> str:
    """Return what a log holds, in words: columns, episodes and their returns, and what was not read.

    The log is read into memory. Without next states, returns omit the last reward of each episode that was cut.

    Args:
        log: What `sopr_fast.load_log` returns, or takes.

    Raises:
        ImportError, MemoryError, OSError, TypeError, ValueError: See `sopr_fast.load_log`.
    """
    import pandas

    log = load_log(log)
    states = log.states if isinstance(log, Transitions) else np.asarray(log)
    columns = {f"state {i}": values for i, values in enumerate(states.T)}
    if isinstance(log, Transitions):
        columns |= {f"action {i}": values for i, values in enumerate(log.actions.T)} | {"reward": log.rewards}
    statistics = [
        (x.min(), x.max(), x.mean(dtype=np.float64), x.std(dtype=np.float64)) for x in map(np.asarray, columns.values())
    ]
    table = pandas.DataFrame(statistics, [*columns], ["low", "high", "mean", "std"])
    lines = [f"rows: {len(states):,}"]
    for part in ("state", "action"):
        of_part = table[table.index.str.startswith(part)]
        constant = [name.split()[1] for name in of_part.index[of_part["low"] == of_part["high"]]]
        said = f" (constant: {list_names(constant)})" if constant else ""
        lines += [f"{part} columns: {len(of_part)}{said}"] if len(of_part) else []
    if isinstance(log, Transitions):
        returns = np.add.reduceat(log.rewards.astype(np.float64), log.episodes[:-1])
        lines.append(log.verdict)
        lines.append(f"returns of episodes: {returns.min():.6g} to {returns.max():.6g}, mean {returns.mean():.6g}")
        if log.unread:
            lines.append(f"not read, though it looks like ends or numbers of episodes: {list_names([*log.unread])}")
    else:
        lines.append("only states are read, since it has no rewards")
    return "\n".join([*lines, table.to_string(float_format="{:.4g}".format, max_rows=_COLUMNS_SHOWN)])
