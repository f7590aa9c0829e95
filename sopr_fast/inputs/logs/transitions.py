"""Logged transitions in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...runtime.checks import integer
from ..files import check_memory
from .arrays import shape_of, warn_of_padding
from .episode_warnings import find_resets, warn_of_shifted_rewards
from .episodes import decide, follow, verdict
from .logged_rows import LoggedRows
from .parts import STORED, Parts

_COLUMNS = ("states", "actions", "rewards", "next_states", "terminals", "timeouts", "source", "log_probs")
_ROW_BYTES = 48  # of flags and of the rows in the user's data


@dataclass(frozen=True, eq=False, repr=False)
class Transitions:
    """N logged steps in order, episode after episode; made by `sopr_fast.load_log`.

    Attributes:
        states: (N, dim_s) float32.
        actions: (N, dim_a) float32.
        rewards: (N,) float32.
        next_states: (N, dim_s) float32.
        terminals: (N,) bool; the environment ended after this step, and values are 0.
        timeouts: (N,) bool; the episode was cut after this step, whose next state had a future.
        episodes: (E + 1,) int64; episode e is rows `episodes[e]:episodes[e + 1]`.
        source: (N,) int64; rows of the steps in the user's data, of which some may have been dropped.
        source_count: Number of rows of the user's data, which an array of actions must have.
        log_probs: (N,) float32 log-probabilities of the actions under the policy that logged them, or None.
        verdict: How many episodes there are, how they end, which arrays decided, and which were not read, in words.
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    episodes: np.ndarray
    source: np.ndarray
    source_count: int
    log_probs: np.ndarray | None = None
    verdict: str = ""

    def __len__(self) -> int:
        return len(self.states)

    def __repr__(self) -> str:
        return f"Transitions({len(self):,} steps; {self.verdict})"

    @property
    def initial_states(self) -> np.ndarray:
        """First state of every episode, (E, dim_s)."""
        return self.states[self.episodes[:-1]]

    @property
    def longest(self) -> float:
        """Most steps of an episode if each ends in a terminal state, infinity if some are cut."""
        return float(np.diff(self.episodes).max()) if self.terminals[self.episodes[1:] - 1].all() else np.inf

    def take(self, episodes: np.ndarray) -> Transitions:
        """Return the log of some episodes, by their indices."""
        rows = np.concatenate([np.arange(self.episodes[e], self.episodes[e + 1]) for e in episodes])
        parts: dict[str, Any] = {name: x[rows] for name in _COLUMNS if (x := getattr(self, name)) is not None}
        return replace(self, episodes=np.concatenate([[0], np.cumsum(np.diff(self.episodes)[episodes])]), **parts)

    @classmethod
    def from_parts(
        cls, parts: Parts, max_episode_steps: int | None = None, filled: np.ndarray | None = None
    ) -> Transitions:
        """Check and convert the parts of a log, and find where episodes end, see `sopr_fast.load_log`."""
        where, arrays = parts.where, parts.arrays
        limit = None if max_episode_steps is None else integer(1)("max_episode_steps", max_episode_steps)
        check_memory(where, _peak(arrays))
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
            raise ValueError(f"{where}: the next state of no step is known; add next states")
        last = ends.last[kept]
        last[-1] = True
        episodes = np.concatenate([[0], np.flatnonzero(last) + 1]).astype(np.int64)
        words = verdict(log, ends, kept, episodes)
        log.columns |= {"next_states": following, "terminals": ends.terminals, "timeouts": ends.timeouts}
        del following
        log.keep(kept)
        steps = {part: values for part, values in log.columns.items() if part in _COLUMNS}
        warn_of_padding(steps["states"], steps["actions"], steps["rewards"], f"{where}: ")
        warn_of_shifted_rewards(steps["rewards"], episodes, f"{where}: {parts.names['rewards']!r}")
        return cls(episodes=episodes, source_count=parts.count or 0, verdict=words, **steps)


def _peak(arrays: Mapping[str, Any]) -> int:
    """Return how many bytes loading takes at most: the result, and the largest array as it is stored."""
    stored, result, count = [0], 0, 0
    for part, values in arrays.items():
        size, count = int(np.prod(shape_of(values), dtype=np.float64)), max([count, *shape_of(values)[:1]])
        if isinstance(values, STORED):
            stored.append(0 if values.dtype == np.float32 else size * values.dtype.itemsize)
        result += 4 * size * (2 if part == "states" and "next_states" not in arrays else 1)
    return result + max(stored) + _ROW_BYTES * count
