"""Logs of any source: transitions, or only states; and their contents at a glance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ...runtime.checks import TOO_LARGE, integer
from ...runtime.rows import Read, gather
from ...runtime.text import escaped_errors, printable
from ..accepted import LogLike
from ..files import check_memory, reading
from .arrays import shape_of, table_shape, warn_of_equal_rows, warn_of_padding, warn_of_rounding
from .episode_warnings import find_resets, warn_of_dropped_rewards, warn_of_rewards
from .episodes import decide, follow, verdict
from .keys import NEEDED, advise, missing
from .parts import STORED, Columns, Parts, find_parts
from .sources import read_arrays
from .stores import filled_rows
from .transitions import COLUMNS, LoggedRows, Transitions

_ROW_BYTES = 48  # of flags and of the rows in the user's data


class StoredStates:
    """(rows, dim_s) logged states; `read` returns some rows, `numpy.asarray` all.

    States in memory are checked at once, others as they are read. TypeError is raised if they are not numbers,
    ValueError if they are empty, not a table, not finite or too large.

    Args:
        values: Array, or rows of a file with `reader`, such as `FileRows`; `shape` and `dtype` are those of its states.
        name: Name of the file in errors.
        rows: Number of rows that were filled, if not all were.
        columns: Names of the columns, if `columns` of `load_states` chose several.
    """

    def __init__(self, values: Any, name: str = "", rows: int | None = None, columns: str = "") -> None:
        self.dtype, self.name, self.columns = np.dtype(values.dtype), printable(name), columns
        self._where = f"{self.name}: " if self.name else ""
        if self.dtype.kind not in "fiub":
            raise TypeError(f"{self._where}states must be numbers, got dtype {self.dtype}")
        count, width = table_shape(values.shape, f"{self._where}states must have shape (rows, dim_s)")
        self.shape = (count if rows is None else rows, width)
        if 0 in self.shape:
            raise ValueError(f"{self._where}states are empty: shape {tuple(values.shape)}")
        self._values = values
        if isinstance(values, np.ndarray):
            self._values = values.reshape(count, width)[: len(self)]
            self._check_values(self._values, range(len(self)))

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if isinstance(self._values, np.ndarray):
            return np.array(self._values, dtype) if copy else np.asarray(self._values, dtype)
        with self._reader() as read:
            return np.asarray(read(0, len(self)), dtype)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return `rows` (n,) int64, ascending, as (n, dim_s) float32.

        Raises:
            ValueError: A row cannot be read, is not finite or too large.

        Warns:
            UserWarning: More than half of the rows are equal, or a column loses its differences in float32.
        """
        states = self._gather(rows)
        self._check_values(states, rows)
        warn_of_equal_rows(states, self._where)
        warn_of_rounding(states, lambda some: self._gather(rows[some], self.dtype), self.dtype, self._where)
        return states

    def has_rows(self, rows: np.ndarray, states: np.ndarray) -> bool:
        """Return whether `rows` (n,) int64, ascending, are the states (n, dim_s) float32; read no others."""
        return bool(rows[-1] < len(self)) and np.array_equal(self._gather(rows), states)

    def _gather(self, rows: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
        """Return `rows` (n,) int64, ascending, as (n, dim_s) numbers of a type, unchecked."""
        with np.errstate(over="ignore"):
            if isinstance(self._values, np.ndarray):
                return np.ascontiguousarray(self._values[rows], dtype)
            states = np.empty((len(rows), self.shape[1]), dtype)
            with self._reader() as read:
                gather(read, rows, states, self._values.row_bytes, self._values.unit)
            return states

    @contextmanager
    def _reader(self) -> Iterator[Read]:
        """Yield a function that reads consecutive rows as a table."""
        with self._values.reader() as read_rows:

            def read(start: int, stop: int) -> np.ndarray:
                with reading(self.name, f"an array with rows {start} to {stop - 1}"):
                    return np.asarray(read_rows(start, stop)).reshape(stop - start, self.shape[1])

            yield read

    def _check_values(self, states: np.ndarray, rows: Sequence[int] | np.ndarray) -> None:
        """Raise if a value of the states, which are these rows, is not finite or too large."""
        with np.errstate(over="ignore"):
            values = states.astype(np.float32, copy=False)
        accepted = (values > -TOO_LARGE) & (values < TOO_LARGE)
        if not accepted.all():
            row = int(np.argmin(accepted.all(1)))
            what = f"hold {values[row][~accepted[row]][0]:g}, beyond the supported magnitude {TOO_LARGE:g}"
            if not np.isfinite(values[row]).all():
                what = "are not finite (as float32)"
            raise ValueError(f"{self._where}states {what} at row {rows[row]}")


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
        max_episode_steps: Time limit of the environment, if the log does not show where it cut episodes, or if
            policies may reach it; 1 for a contextual bandit, whose every row is an episode.

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
    if limit != 1 and "next_states" not in log and {"first", "last"} <= log.keys():
        log.take_last_states()
    if limit != 1:
        log.forget_filled()
    if limit != 1 and (resets := find_resets(log)).any():
        log["reset"] = np.append(resets[1:], False)
        log.keep(np.flatnonzero(~resets))
    ends = decide(log, limit)
    dropped, following = follow(log, ends)
    ends.timeouts = (ends.timeouts | np.append(dropped[1:], False)) & ~ends.terminals
    ends.inside[:-1] &= ~dropped[1:]
    warn_of_dropped_rewards(log["rewards"], dropped, parts.where)
    kept = np.flatnonzero(~dropped)
    if not len(kept):
        raise ValueError(f"{parts.where}: the next state of no step is known; add next states")
    last = ends.last[kept]
    last[-1] = True
    episodes = np.concatenate([[0], np.flatnonzero(last) + 1]).astype(np.int64)
    words = verdict(log, ends, kept, episodes)
    log |= {"next_states": following, "terminals": ends.terminals, "timeouts": ends.timeouts}
    del following
    log.keep(kept)
    steps = {part: values for part, values in log.items() if part in COLUMNS}
    warn_of_padding(steps, f"{parts.where}: ")
    warn_of_rewards(steps["rewards"], episodes, f"{parts.where}: {parts.names['rewards']!r}")
    count = parts.count or 0
    return Transitions(
        episodes=episodes, source_count=count, verdict=words, columns=parts.columns, max_episode_steps=limit, **steps
    )


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
        return StoredStates(states.states, columns=states.columns)
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
        return StoredStates(values[:, None] if values.ndim == 1 else values, where, rows, parts.columns)
    with values.reader():  # raises if the file does not hold them
        return StoredStates(values, values.name, rows, parts.columns)


def thin(log: Transitions, rows: int) -> Transitions:
    """Return whole episodes of a log, drawn at random, of at most `rows` rows together, but one episode at least."""
    drawn = np.random.default_rng(0).permutation(len(log.episodes) - 1)
    lengths = np.diff(log.episodes)
    few = max(1, int(np.searchsorted(np.cumsum(lengths[drawn]), rows, side="right")))
    taken = log.take(np.sort(drawn[:few]))
    return taken if few == len(lengths) else replace(taken, verdict=f"{few:,} episodes, drawn from {log.verdict}")


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
        returns = log.returns
        lines += [f"action columns: {log.actions.shape[1]}", log.verdict]
        lines += [f"returns of episodes: {returns.min():.6g} to {returns.max():.6g}, mean {returns.mean():.6g}"]
    else:
        lines.append("only states are read, since it has no rewards")
    rows = [(x.min(), x.max(), x.mean(dtype=np.float64), x.std(dtype=np.float64)) for x in columns.values()]
    table = pandas.DataFrame(rows, [*columns], ["low", "high", "mean", "std"])
    return "\n".join([*lines, table.to_string(float_format="{:.4g}".format, max_rows=40)])
