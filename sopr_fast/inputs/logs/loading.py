"""Logs of any source: transitions, or only states; and their contents at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...argument_types import LogLike
from ...runtime.checks import integer
from ...runtime.files import naming
from ...runtime.rows import StoredRows
from ...runtime.text import escaped_errors
from .parts import Parts
from .schema import Columns, advise, check_needed, find_parts, missing
from .sources import name_of, read_arrays
from .states import StoredStates
from .stores import filled_rows
from .transitions import Transitions, build


@escaped_errors()
def load_log(
    source: LogLike,
    *,
    columns: Columns | None = None,
    ends: str | None = None,
    max_episode_steps: int | None = None,
) -> Transitions | StoredStates:
    """Load a log: transitions into memory, or only states if there are neither rewards nor costs.

    Arrays are recognised by name, see the page on files; nothing is inferred from their values. Columns of tables may
    be numbered (`obs_0`, `obs_1`, …), or hold lists. Where episodes end, and whether the environment ended there, must
    be said completely, see `Transitions.from_arrays`; `Transitions.summary` says what said so.

    Rows are used as they are. Without next states, the next state of a step is the state of the next row, and that of a
    terminal step its own. A last step whose next state is unknown is left out, as in D4RL's `qlearning_dataset`.

    Args:
        source: Path of a file, of a folder of .npy files, or of a Minari dataset. Dataset of Minari or d3rlpy; data
            frame; dictionary of arrays or tensors; or a list of such dictionaries, one for each episode or step. Only
            states, as `sopr_fast.fit` takes them; or `Transitions`, returned unchanged. No code in a pickle runs.
        columns: Part of the log, such as "states" → name of its array, or names of the arrays that it consists of.
            Needed if the names are not those of the page on files. Arrays of "unread" are left out.
        ends: What the ends of episodes are that no array tells apart: "terminal", the environment ended, or "cut".
        max_episode_steps: Time limit of the environment, if the log does not show where it cut episodes, or if
            policies may reach it; 1 for a contextual bandit, whose every row is an episode.

    Raises:
        FileNotFoundError, ImportError: No such file, or the extra that reads it is not installed.
        MemoryError: The log is larger than the free memory.
        TypeError, ValueError: An array, or the file, is damaged, missing or wrong, contradicts another, or does not say
            enough. Names the row, and what to pass.
    """
    if isinstance(source, Transitions | StoredStates):
        if (columns, ends, max_episode_steps) != (None, None, None):
            raise ValueError("columns, ends and max_episode_steps are for logs that are not loaded yet; leave them out")
        return source
    with naming(name_of(source)):
        arrays = read_arrays(source)
        parts = find_parts(arrays, columns)
        if not {"rewards", "costs"} & parts.arrays.keys() and ends is None and max_episode_steps is None:
            states = _states_of(parts, arrays, name_of(source))
            states.summary = f"only states are read, since there are no rewards{parts.not_read}"
            return states
        check_needed(parts.arrays, arrays)
        limit = None if max_episode_steps is None else integer(1)("max_episode_steps", max_episode_steps)
        return build(parts, ends, limit, filled_rows(arrays, parts.count or 0))


def load_transitions(source: LogLike) -> Transitions:
    """Load a log with actions and rewards, see `load_log`."""
    log = load_log(source)
    if isinstance(log, Transitions):
        return log
    raise ValueError(
        f"{log.name or 'the log'}: {log.summary}; actions and rewards are needed too: {advise('rewards')} or "
        f"{advise('costs')}"
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
        return StoredStates(states.states, columns=states.columns, actions=states.actions)
    with naming(name_of(states)):
        arrays = read_arrays(states)
        chosen = None if columns is None else {"states": columns}
        return _states_of(find_parts(arrays, chosen, ("states", "actions")), arrays, name_of(states))


def _states_of(parts: Parts, arrays: Mapping[str, Any], name: str) -> StoredStates:
    """Return the states among the parts of a log; rows of a buffer that were not filled are left out."""
    if "states" not in parts.arrays:
        raise missing("states", arrays)
    values, actions = (parts.arrays.get(part) for part in ("states", "actions"))
    if (filled := filled_rows(arrays, parts.count or 0)) is not None:
        values, actions = parts.numbers("states")[filled], None
    elif isinstance(values, StoredRows):
        name = values.name
        with values.reader():  # raises if the file does not hold them
            pass
    else:
        values = parts.numbers("states")
    return StoredStates(values, name, parts.columns, actions)


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
    lines = [f"rows: {len(states):,}", f"state columns: {states.shape[1]}", log.summary]
    if isinstance(log, Transitions):
        columns |= {f"action {i}": values for i, values in enumerate(log.actions.T)} | {"reward": log.rewards}
        lines.insert(2, f"action columns: {log.actions.shape[1]}")
        low, high, mean = (f"{x:.6g}" for x in (log.returns.min(), log.returns.max(), log.returns.mean()))
        lines.append(f"returns of episodes: {low} to {high}, mean {mean}")
    facts = {
        name: {"low": x.min(), "high": x.max(), "mean": x.mean(dtype=np.float64), "std": x.std(dtype=np.float64)}
        | {"distinct": "constant" if x.min() == x.max() else f"{len(np.unique(x)) / len(x):.2%}"}
        for name, x in columns.items()
    }
    table = pandas.DataFrame.from_dict(facts, orient="index")
    return "\n".join([*lines, table.to_string(float_format="{:.4g}".format, max_rows=40)])
