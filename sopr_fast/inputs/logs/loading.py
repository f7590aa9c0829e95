"""Logs of any source: transitions, or only states; and their contents at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...runtime.checks import integer
from ...runtime.text import escaped_errors
from ..accepted import LogLike
from ..files import check_memory
from .arrays import shape_of, warn_of_padding
from .episode_warnings import find_resets, warn_of_shifted_rewards
from .episodes import decide, follow, verdict
from .keys import NEEDED, advise, missing
from .parts import STORED, Columns, Parts, find_parts
from .replay_buffers import filled_rows
from .sources import read_arrays
from .stored import StoredStates
from .transitions import COLUMNS, LoggedRows, Transitions

_ROW_BYTES = 48  # of flags and of the rows in the user's data


@escaped_errors()
def load_log(
    source: LogLike, *, columns: Columns | None = None, rows: int | None = None, max_episode_steps: int | None = None
) -> Transitions | StoredStates:
    """Load a log: transitions into memory, or only states if there are no rewards.

    Arrays are recognised by name, see the page on files. Columns of tables may be numbered (`obs_0`, `obs_1`, …), or
    hold lists. Arrays of shape (rows, 1, columns) count as (rows, columns).

    Episodes end where flags, numbers of episodes and steps, and next states say so; `Transitions.verdict` says what was
    decided. Rows are sorted by episode and step, or time as numbers or ISO dates, if both are given. Without next
    states, the next state of a step is the state of the next row, and that of a terminal step its own state; a last
    step whose next state is unknown is dropped, as in D4RL's `qlearning_dataset`. Rows of `is_last` in logs that have
    `is_first` too, as RLDS, hold only the last state of an episode.

    Args:
        source: Path of a file, of a folder of .npy files, or of a Minari dataset, or its id. Dataset of Minari or
            d3rlpy; data frame; dictionary of arrays or tensors; or a list of such dictionaries, one for each episode or
            step, or of (state, action, reward, next state, done). Only states, as `sopr_fast.fit` takes them; or
            `Transitions`, returned unchanged. Nothing in a pickle is executed.
        columns: Part of the log, such as "states" → name of its array, or names of the arrays that it consists of.
            Needed if the names are not those of the page on files.
        rows: Most transitions to keep; whole episodes are drawn from a larger log.
        max_episode_steps: Time limit of the environment, if the log does not show where it cut episodes; 1 for a
            contextual bandit, whose every row is an episode.

    Raises:
        FileNotFoundError, ImportError: No such file, or the extra that reads it is not installed.
        MemoryError: The log is larger than the free memory.
        TypeError, ValueError: An array, or the file, is damaged, missing, wrong or contradicts another. Names the row.

    Warns:
        UserWarning: Something may be read wrong, such as ends of episodes, rows that do not follow each other, or
            padding.
    """
    rows = None if rows is None else integer(1)("rows", rows)
    if isinstance(source, Transitions | StoredStates):
        if max_episode_steps is not None or columns is not None:
            raise ValueError("columns and max_episode_steps are for logs that are not loaded yet; leave them out")
        return source if rows is None or isinstance(source, StoredStates) else thin(source, rows)
    arrays, where = read_arrays(source)
    parts = find_parts(arrays, columns, where)
    if "rewards" not in parts.arrays and max_episode_steps is None:
        return _states_of(arrays, where, (columns or {}).get("states"))
    for part in NEEDED:
        if part not in parts.arrays:
            raise missing(part, arrays, where)
    limit = None if max_episode_steps is None else integer(1)("max_episode_steps", max_episode_steps)
    log = _transitions(parts, limit, filled_rows(arrays, parts.count or 0))
    return log if rows is None else thin(log, rows)


def _transitions(parts: Parts, limit: int | None, filled: np.ndarray | None) -> Transitions:
    """Check and convert the parts of a log, and find where episodes end, with a time limit in steps."""
    check_memory(parts.where, _peak(parts.arrays))
    log = LoggedRows(parts, filled)
    log.sort()
    if limit != 1 and log.following is None and {"first", "last"} <= log.flags.keys():
        log.take_last_states()
    if limit != 1 and (resets := find_resets(log)).any():
        log.keep(np.flatnonzero(~resets))
    ends = decide(log, limit)
    dropped, following = follow(log, ends)
    ends.timeouts = (ends.timeouts | np.append(dropped[1:], False)) & ~ends.terminals
    ends.inside[:-1] &= ~dropped[1:]
    kept = np.flatnonzero(~dropped)
    if not len(kept):
        raise ValueError(f"{parts.where}: the next state of no step is known; add next states")
    last = ends.last[kept]
    last[-1] = True
    episodes = np.concatenate([[0], np.flatnonzero(last) + 1]).astype(np.int64)
    words = verdict(log, ends, kept, episodes)
    log.columns |= {"next_states": following, "terminals": ends.terminals, "timeouts": ends.timeouts}
    del following
    log.keep(kept)
    steps = {part: values for part, values in log.columns.items() if part in COLUMNS}
    warn_of_padding(steps["states"], steps["actions"], steps["rewards"], f"{parts.where}: ")
    warn_of_shifted_rewards(steps["rewards"], episodes, f"{parts.where}: {parts.names['rewards']!r}")
    return Transitions(episodes=episodes, source_count=parts.count or 0, verdict=words, **steps)


def _peak(arrays: Mapping[str, Any]) -> int:
    """Return how many bytes loading takes at most: the result, and the largest array as it is stored."""
    stored, result, count = [0], 0, 0
    for part, values in arrays.items():
        size, count = int(np.prod(shape_of(values), dtype=np.float64)), max([count, *shape_of(values)[:1]])
        if isinstance(values, STORED):
            stored.append(0 if values.dtype == np.float32 else size * values.dtype.itemsize)
        result += 4 * size * (2 if part == "states" and "next_states" not in arrays else 1)
    return result + max(stored) + _ROW_BYTES * count


def load_transitions(source: LogLike) -> Transitions:
    """Load a log with actions and rewards, see `load_log`."""
    log = load_log(source)
    if isinstance(log, Transitions):
        return log
    raise ValueError(
        f"{log.name or 'the log'}: only states; this method needs rewards too: name them by {advise('rewards')}"
    )


@escaped_errors()
def load_states(states: LogLike, *, columns: str | Sequence[str] | None = None) -> StoredStates:
    """Return logged states in the form that drawing reads; of `.npy` and HDF5 files, only drawn rows are read.

    Args:
        states: (rows, dim_s) array, tensor, nested sequence or data frame without column names; path of an `.npy` file;
            or anything that `sopr_fast.load_log` returns or reads.
        columns: Name of the array of states, or names of the columns that they consist of, if they have others.

    Raises:
        FileNotFoundError, ImportError, MemoryError: See `sopr_fast.load_log`.
        TypeError, ValueError: The file is damaged or has no states; or they are empty, not a table, not finite or too
            large. Names the row.
    """
    if isinstance(states, StoredStates):
        return states
    if isinstance(states, Transitions):
        return StoredStates(states.states)
    return _states_of(*read_arrays(states), columns)


def _states_of(arrays: Mapping[str, Any], where: str, columns: str | Sequence[str] | None) -> StoredStates:
    """Return the states among named arrays; rows of a buffer that were not filled are left out."""
    parts = find_parts(arrays, None if columns is None else {"states": columns}, where, ("states",))
    if "states" not in parts.arrays:
        raise missing("states", arrays, where)
    values = parts.arrays["states"]
    filled = filled_rows(arrays, parts.count or 0)
    rows = None if filled is None else len(filled)
    if not hasattr(values, "reader") or len(values.shape) == 1:
        values = parts.numbers("states")
        return StoredStates(values[:, None] if values.ndim == 1 else values, where, rows)
    with values.reader():  # raises if the file does not hold them
        return StoredStates(values, values.name, rows)


def thin(log: Transitions, rows: int) -> Transitions:
    """Return whole episodes of a log, drawn at random, of at most `rows` rows together, but one episode at least."""
    drawn = np.random.default_rng(0).permutation(len(log.episodes) - 1)
    lengths = np.diff(log.episodes)
    few = max(1, int(np.searchsorted(np.cumsum(lengths[drawn]), rows, side="right")))
    return log.take(np.sort(drawn[:few]))


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
    lines = [f"rows: {len(states):,}", f"state columns: {states.shape[1]}"]
    if isinstance(log, Transitions):
        columns |= {f"action {i}": values for i, values in enumerate(log.actions.T)} | {"reward": log.rewards}
        returns = np.add.reduceat(log.rewards.astype(np.float64), log.episodes[:-1])
        lines += [f"action columns: {log.actions.shape[1]}", log.verdict]
        lines += [f"returns of episodes: {returns.min():.6g} to {returns.max():.6g}, mean {returns.mean():.6g}"]
    else:
        lines.append("only states are read, since it has no rewards")
    rows = [(x.min(), x.max(), x.mean(dtype=np.float64), x.std(dtype=np.float64)) for x in columns.values()]
    table = pandas.DataFrame(rows, [*columns], ["low", "high", "mean", "std"])
    return "\n".join([*lines, table.to_string(float_format="{:.4g}".format, max_rows=40)])
