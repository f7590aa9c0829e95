"""Logged transitions in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...runtime.checks import check_integer
from ...runtime.rows import FileRows
from ...runtime.warn import warn
from .arrays import Checks, Lazy, shape_of, warn_of_equal_rows, warn_of_padding
from .episode_warnings import find_resets, warn_of_shifted_rewards
from .episodes import decide, follow, order_rows, take, verdict
from .files import check_memory
from .hdf5 import Hdf5Array
from .keys import ENDS, Parts, is_inverted
from .tables import ParquetArray

_BLOCK = 65536  # rows
_STORED = (Lazy, FileRows, Hdf5Array, ParquetArray)  # arrays that are read when they are needed
_ROW_BYTES = 32  # of flags and of the rows in the user's data


@dataclass(frozen=True, eq=False)
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
        verdict: How many episodes there are, how they end and which arrays decided, in words.
        unread: Names of arrays that look like ends of episodes and were not read.
        missing: Parts that the log lacks.
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
    unread: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.states)

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
        names = ("states", "actions", "rewards", "next_states", "terminals", "timeouts", "source", "log_probs")
        parts: dict[str, Any] = {name: take(getattr(self, name), rows) for name in names}
        return replace(self, episodes=np.concatenate([[0], np.cumsum(np.diff(self.episodes)[episodes])]), **parts)

    @classmethod
    def from_parts(
        cls, parts: Parts, max_episode_steps: int | None = None, rows: np.ndarray | None = None
    ) -> Transitions:
        """Check and convert the parts of a log, and find where episodes end, see `sopr_fast.load_log`."""
        where, names = parts.where, parts.names
        limit = None if max_episode_steps is None else check_integer("max_episode_steps", max_episode_steps, 1)
        check_memory(where, _peak(parts.arrays))
        checks = Checks(where, names)
        log = _Rows.of_parts(checks, parts, rows)
        order, log.ids = order_rows(log.ids, log.steps, log.flags, names, where)
        log.keep(order)
        total, rewards = log.total, checks.column("rewards", parts.arrays["rewards"], log.total)
        if limit != 1:
            if log.following is None and {"first", "last"} <= log.flags.keys():
                parts = log.take_last_states(parts)
            marks = [x for part, x in log.flags.items() if part in ("terminals", "timeouts", "dones")]
            ends = np.any(marks or [log.unknown], axis=0)
            resets = find_resets(where, log.states, log.following, ends, take(rewards, log.source))
            log.keep(np.flatnonzero(~resets) if resets.any() else None)
        states, following, unknown, rows = log.states, log.following, log.unknown, log.source
        equal = warn_of_equal_rows(states, f"{where}: ")
        terminals, timeouts, inside, deciders = decide(parts, states, following, log.flags, log.ids, log.steps, limit)
        del log
        dropped, following = follow(states, following, terminals, timeouts, inside, where)
        dropped |= unknown & ~terminals
        timeouts = (timeouts | np.append(dropped[1:], False)) & ~terminals
        inside[:-1] &= ~dropped[1:]
        kept = np.flatnonzero(~dropped)
        if not len(kept):
            raise ValueError(f"{where}: the next state of no step is known; add next states")
        ends = ((terminals & ~inside) | timeouts)[kept]
        ends[-1] = True
        episodes = np.concatenate([[0], np.flatnonzero(ends) + 1]).astype(np.int64)
        source = kept if rows is None else rows[kept]
        states = _keep(states, kept, parts.arrays["states"])
        following = _keep(following, kept, parts.arrays.get("next_states"))
        rewards = _keep(rewards, source, parts.arrays["rewards"])
        actions = checks.table("actions", parts.arrays["actions"], total)
        actions = _keep(actions, source, parts.arrays["actions"])
        if not equal:
            warn_of_padding(states, actions, rewards, f"{where}: ")
        warn_of_shifted_rewards(rewards, episodes, f"{where}: {checks.name('rewards')}")
        log_probs = checks.log_probs(parts.arrays, actions, total)
        terminals = terminals[kept]
        words = verdict(terminals, episodes, int(inside[kept].sum()), deciders)
        return cls(
            states,
            actions,
            rewards,
            following,
            terminals,
            timeouts[kept],
            episodes,
            source,
            total,
            None if log_probs is None else log_probs[source],
            words,
            parts.unread,
            parts.missing,
        )


@dataclass
class _Rows:
    """Rows of a log, and what marks their episodes.

    Attributes:
        states: (N, dim_s) states.
        following: (N, dim_s) next states, or None.
        unknown: (N,) bool, whether the next state is unknown.
        flags: Flags (N,) of ends by part.
        ids: (N,) numbers of episodes, or None.
        steps: (N,) numbers of steps, or None.
        source: (N,) rows in the caller's data; None if they are all, in order.
        total: Number of rows in the caller's data.
    """

    states: np.ndarray
    following: np.ndarray | None
    unknown: np.ndarray
    flags: dict[str, np.ndarray]
    ids: np.ndarray | None
    steps: np.ndarray | None
    source: np.ndarray | None
    total: int

    @classmethod
    def of_parts(cls, checks: Checks, parts: Parts, filled: np.ndarray | None) -> _Rows:
        """Return the rows of a log that are filled and no padding."""
        where, names = parts.where, parts.names
        states = checks.table("states", parts.arrays["states"])
        total = len(states)
        flags = {
            part: checks.flags(part, parts.arrays[part], total, inverted=part != "valid" and is_inverted(names[part]))
            for part in (*ENDS, "valid")
            if part in parts.arrays
        }
        ids, steps = (checks.labels(part, parts.arrays.get(part), total) for part in ("episodes", "steps"))
        if filled is not None and (states[len(filled) :] != states[-1]).any():
            warn(
                f"{where}: by 'size', 'pos' or the like, {len(filled):,} rows were filled; the other "
                f"{total - len(filled):,} are left out, though they differ: remove that field if they count"
            )
        following, unknown = None, np.zeros(total, bool)
        if "next_states" in names:
            following = checks.table("next_states", parts.arrays["next_states"], total, gaps=True)
            if following.shape != states.shape:
                raise ValueError(
                    f"{where}: {names['next_states']!r} have {following.shape[1]} columns, {names['states']!r} "
                    f"{states.shape[1]}"
                )
            if (unknown := np.isnan(following[:, 0])).any():  # last rows, as of a column that was shifted
                following = np.where(unknown[:, None], states, following)
                flags["last"] = flags.get("last", False) | unknown
                names.setdefault("last", names["next_states"])
        if (valid := flags.pop("valid", None)) is not None:
            filled = np.flatnonzero(valid) if filled is None else filled[valid[filled]]
            if not len(filled):
                raise ValueError(f"{where}: {names['valid']!r} marks no row")
        rows = cls(states, following, unknown, flags, ids, steps, None, total)
        del states, following  # so that `keep` holds one copy at a time
        rows.keep(filled)
        return rows

    def keep(self, rows: np.ndarray | None) -> None:
        """Keep only some rows, by index, in this order; all if None."""
        if rows is None:
            return
        for name in ("states", "following", "unknown", "ids", "steps"):
            setattr(self, name, take(getattr(self, name), rows))
        self.flags = {part: x[rows] for part, x in self.flags.items()}
        self.source = rows if self.source is None else self.source[rows]

    def take_last_states(self, parts: Parts) -> Parts:
        """Turn rows that hold only the last state of an episode, as steps of RLDS do, into next states."""
        last = self.flags["last"]
        if last.all():
            raise ValueError(f"{parts.where}: the next state of no step is known; add next states")
        following = np.concatenate([self.states[1:], self.states[-1:]])
        self.following, self.unknown = following, np.arange(len(last)) == len(last) - 1
        self.flags["last"] = np.append(last[1:], True)
        if "terminals" in self.flags:
            self.flags["terminals"] = np.append((self.flags["terminals"] & last)[1:], False)
        self.keep(np.flatnonzero(~last))
        names = parts.names | {"next_states": parts.names["states"]}
        return replace(parts, arrays=parts.arrays | {"next_states": following}, names=names)


def _peak(arrays: Mapping[str, Any]) -> int:
    """Return how many bytes loading takes at most: the result, and the largest array as it is stored."""
    stored, result, count = [0], 0, 0
    for part, values in arrays.items():
        size, count = int(np.prod(shape_of(values), dtype=np.float64)), max([count, *shape_of(values)[:1]])
        if isinstance(values, _STORED):
            is_result = values.dtype == np.float32 and not isinstance(values, ParquetArray)  # which decodes row groups
            stored.append(0 if is_result else size * values.dtype.itemsize)
        result += 4 * size * (2 if part == "states" and "next_states" not in arrays else 1)
    return result + max(stored) + _ROW_BYTES * count


def _keep(values: np.ndarray, rows: np.ndarray, given: Any) -> np.ndarray:
    """Return rows of an array; in place where they ascend and the memory is not that of the user's array, `given`."""
    steps = np.diff(rows)
    if len(rows) == len(values) and (steps == 1).all():
        return values
    if not (given is None or isinstance(given, _STORED)) or (steps < 0).any():
        return values[rows]
    for start in range(0, len(rows), _BLOCK):
        values[start : start + _BLOCK][: len(rows) - start] = values[rows[start : start + _BLOCK]]
    return values[: len(rows)]
