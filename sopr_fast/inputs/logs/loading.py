"""Logs of any source: transitions, or only states."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...runtime.text import escaped_errors
from .arrays import shape_of
from .keys import NEEDED, Columns, Parts, find_parts, missing
from .replay_buffers import filled_rows, is_list_of_dicts
from .sources import read_arrays
from .states import load_states, states_of
from .stored import StoredStates
from .tables import is_frame
from .transitions import Transitions


@escaped_errors()
def load_log(
    source: Any, *, columns: Columns | None = None, rows: int | None = None, max_episode_steps: int | None = None
) -> Transitions | StoredStates:
    """Load a log: transitions into memory, or only states if there are no rewards.

    Arrays are recognised by name, see the page on files; each name has one meaning. Two arrays of one part must agree.
    Columns of tables may be numbered: `obs_0`, `obs_1`, … (also `obs.0`, `obs[0]`), or hold lists. Arrays of shape
    (rows, 1, columns), as replay buffers of one environment have them, count as (rows, columns).

    Episodes end where flags, numbers of episodes and steps, and next states say so. Where these are, rows are sorted
    by episode and step. `Transitions.verdict` says what was decided, and by which arrays.

    Without next states, the next state of a step is the state of the next row, and that of a terminal step its own
    state. The last step of an episode that was cut is then dropped, since its next state is unknown, as in D4RL's
    `qlearning_dataset`; so is the last step of the data unless it is terminal.

    Args:
        source: One of

            - path of an HDF5 file (.hdf5, .h5): of D4RL, Minari, robomimic, Tianshou, or d3rlpy's `ReplayBuffer.dump`;
            - path of an .npz, parquet, CSV or JSON file, or of a folder of .npy files;
            - path of a pickle (.pkl) of a replay buffer of Stable-Baselines3 or sb3-contrib, of a dict of arrays, or of
              a list of such dicts, one for each episode; nothing in it is executed;
            - id, folder or object of a local Minari dataset;
            - dictionary of arrays or tensors, such as d4rl's `qlearning_dataset(env)` returns, or a list of such
              dictionaries, one for each episode or step;
            - data frame;
            - only states, as `sopr_fast.fit` takes them;
            - `Transitions`, returned unchanged.
        columns: Part of the log, such as "states", "terminals" or "episodes" → name of its array, or names of the
            arrays that it consists of, for logs whose names are not those of the page on files.
        rows: Most transitions to keep: of a larger log, whole episodes are drawn.
        max_episode_steps: Time limit of the environment, if the log does not show where it cut episodes; 1 for a
            contextual bandit, whose every row is an episode.

    Raises:
        FileNotFoundError: No such file.
        ImportError: The extra that reads such files is not installed.
        MemoryError: The log is larger than the free memory.
        TypeError: Not a source of the list above, or an array that does not hold numbers.
        ValueError: The file is damaged, an array is missing or wrong, or two arrays contradict each other; names the
            array and row.

    Warns:
        UserWarning: Nothing shows where a time limit cut episodes; rows do not follow each other; terminal rows lead
            on; an array that looks like ends is not read; rows of a buffer were not filled; or states lose their
            differences in float32.
    """
    if isinstance(source, Transitions | StoredStates):
        if max_episode_steps is not None:
            raise ValueError("max_episode_steps: Transitions are cut into episodes already; leave it out")
        if columns is not None:
            raise ValueError("columns: Transitions have no names to map; leave it out")
        return source if rows is None or isinstance(source, StoredStates) else thin(source, rows)
    if not has_names(source):
        return load_states(source)
    arrays, where = read_arrays(source)
    log = of_parts(arrays, find_parts(arrays, columns, where), columns, max_episode_steps)
    return log if rows is None or isinstance(log, StoredStates) else thin(log, rows)


@escaped_errors()
def load_transitions(source: Any) -> Transitions:
    """Load a log with actions and rewards, see `load_log`."""
    if isinstance(source, Transitions):
        return source
    if isinstance(source, StoredStates):
        raise TypeError("the log holds only states; this method needs actions and rewards too")
    arrays, where = read_arrays(source)
    parts = find_parts(arrays, None, where)
    for part in NEEDED:
        if part not in parts.arrays:
            raise missing(part, arrays, where)
    return cast(Transitions, of_parts(arrays, parts))


def of_parts(
    arrays: Mapping[str, Any], parts: Parts, columns: Columns | None = None, max_episode_steps: int | None = None
) -> Transitions | StoredStates:
    """Return the log that named arrays are, see `load_log`."""
    if "rewards" not in parts.arrays:
        return states_of(arrays, (columns or {}).get("states"), parts.where)
    for part in NEEDED:
        if part not in parts.arrays:
            raise missing(part, arrays, parts.where)
    return Transitions.from_parts(parts, max_episode_steps, filled_rows(arrays, shape_of(parts.arrays["states"])[0]))


def has_names(log: Any) -> bool:
    """Return whether a log consists of named arrays."""
    if isinstance(log, str | os.PathLike):
        return Path(log).suffix.lower() != ".npy"
    return isinstance(log, Mapping) or is_frame(log) or is_list_of_dicts(log) or hasattr(log, "iterate_episodes")


def thin(log: Transitions, rows: int) -> Transitions:
    """Return whole episodes of a log, drawn at random, of at most `rows` rows together, but one episode at least."""
    drawn = np.random.default_rng(0).permutation(len(log.episodes) - 1)
    lengths = np.diff(log.episodes)
    few = max(1, int(np.searchsorted(np.cumsum(lengths[drawn]), rows, side="right")))
    chosen = np.sort(drawn[:few])
    kept = np.concatenate([np.arange(log.episodes[e], log.episodes[e + 1]) for e in chosen])
    names = ("states", "actions", "rewards", "next_states", "terminals", "timeouts", "source", "log_probs")
    parts: dict[str, Any] = {name: None if getattr(log, name) is None else getattr(log, name)[kept] for name in names}
    return replace(log, episodes=np.concatenate([[0], np.cumsum(lengths[chosen])]), **parts)
