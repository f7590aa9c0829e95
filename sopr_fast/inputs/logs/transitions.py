"""Logged transitions in memory, and rows of a log on the way there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...runtime.warn import warn
from .keys import ENDS, TIMES
from .parts import Parts

COLUMNS = ("states", "actions", "rewards", "next_states", "terminals", "timeouts", "source", "log_probs")
NEARLY_ALL = 0.9
_BLOCK = 65536  # rows
_DATES = 1e9  # seconds, or units of pandas, since 1970; several rows may have one
_FEWEST_FILLED = 3  # ends


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
        columns: Names of the columns of states, if `columns` of `load_log` chose several, else "".
        max_episode_steps: Time limit that was passed to `load_log`, or None.
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
    columns: str = ""
    max_episode_steps: int | None = None

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

    @property
    def limit(self) -> float:
        """Time limit in steps, infinity if it is unknown.

        If none was passed, it is the length of the longest episodes, if a timeout ended one or if all are as long.
        """
        lengths = np.diff(self.episodes)
        longest = lengths == lengths.max()
        if self.max_episode_steps is not None:
            return float(max(self.max_episode_steps, lengths.max()))
        is_known = (len(lengths) > 1 and longest.all()) or self.timeouts[self.episodes[1:] - 1][longest].any()
        return float(lengths.max()) if is_known else np.inf

    @property
    def returns(self) -> np.ndarray:
        """Undiscounted sum of the logged rewards of every episode, (E,) float64."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.episodes[:-1])

    def take(self, episodes: np.ndarray) -> Transitions:
        """Return the log of some episodes, by their indices."""
        rows = np.concatenate([np.arange(self.episodes[e], self.episodes[e + 1]) for e in episodes])
        parts: dict[str, Any] = {name: x[rows] for name in COLUMNS if (x := getattr(self, name)) is not None}
        return replace(self, episodes=np.concatenate([[0], np.cumsum(np.diff(self.episodes)[episodes])]), **parts)


class LoggedRows(dict[str, np.ndarray]):
    """Rows of a log that are filled and no padding: part of the log → its values (N, …), see `Parts.read`.

    Parts are added: `source`, the rows in the user's data; `unknown`, whether the next state is unknown; and `reset`,
    whether a row that was left out led from there to the first state of an episode.
    """

    linked: np.ndarray | None = None  # (N - 1,) bool: whether the next state is the state of the next row

    def __init__(self, parts: Parts, filled: np.ndarray | None) -> None:
        super().__init__({part: parts.read(part) for part in parts.arrays})
        self.parts, self.where, self.names = parts, parts.where, parts.names
        states, following = self["states"], self.get("next_states")
        self |= {"source": np.arange(len(states)), "unknown": np.zeros(len(states), bool)}
        if filled is not None and (states[len(filled) :] != states[-1]).any():
            warn(
                f"{self.where}: by 'size', 'pos' or the like, {len(filled):,} rows were filled; the other "
                f"{len(states) - len(filled):,} are left out, though they differ: remove that field if they count"
            )
        if following is not None:
            if following.shape != states.shape:
                raise ValueError(
                    f"{self.where}: {self.names['next_states']!r} have {following.shape[1]} columns, "
                    f"{self.names['states']!r} {states.shape[1]}"
                )
            if (unknown := np.isnan(following[:, 0])).any():  # last rows, as of a column that was shifted
                following[unknown] = states[unknown]
                self["unknown"] = unknown
                if unknown[:-1].any():  # else all states were shifted together
                    self["last"] = self.get("last", False) | unknown
                    self.names.setdefault("last", self.names["next_states"])
        if (log_probs := parts.log_probs(self)) is not None:
            self["log_probs"] = log_probs
        if (valid := self.pop("valid", None)) is not None:
            filled = np.flatnonzero(valid) if filled is None else filled[valid[filled]]
            if not len(filled):
                raise ValueError(f"{self.where}: {self.names['valid']!r} marks no row")
        if filled is not None:
            self.keep(filled)

    def keep(self, rows: np.ndarray) -> None:
        """Keep only some rows, by index, in this order; in place if they ascend."""
        growth = np.diff(rows)
        if len(rows) == len(self["states"]) and (growth == 1).all():
            return
        for part, values in self.items():
            if (growth < 0).any():
                self[part] = values[rows]
                continue
            for start in range(0, len(rows), _BLOCK):
                few = rows[start : start + _BLOCK]
                values[start : start + len(few)] = values[few]
            self[part] = values[: len(rows)]

    def forget_filled(self) -> None:
        """Take next states as unknown that are 0 at ends, while no state and no other next state is; warn."""
        states, following = self["states"], self.get("next_states")
        if following is None or states.shape[1] == 1 or not states.any(1).all():
            return
        filled = np.logical_not(following.any(1))
        if filled.sum() >= _FEWEST_FILLED and self.marked()[filled].all():
            warn(
                f"{self.where}: {self.names['next_states']!r} are 0 at {list_rows(filled, 'ends')}, and no state is: "
                "they are taken as unknown, as where they were not stored"
            )
            following[filled] = states[filled]
            self["unknown"] |= filled

    def take_last_states(self) -> None:
        """Turn rows that hold only the last state of an episode, as steps of RLDS do, into next states."""
        last, states = self["last"].copy(), self["states"]
        if last.all():
            raise ValueError(f"{self.where}: the next state of no step is known; add next states")
        self["next_states"] = np.concatenate([states[1:], states[-1:]])
        self["unknown"] = np.arange(len(last)) == len(last) - 1
        self.names["next_states"] = self.names["states"]
        self["last"] = np.append(last[1:], True)
        if "terminals" in self:
            ended = self["terminals"][1:] | self["terminals"][:-1]  # marked there, or at the step that led there
            self["terminals"] = np.append(last[1:] & ended, False)
        self.keep(np.flatnonzero(~last))

    def marked(self, parts: Sequence[str] = ENDS) -> np.ndarray:
        """Return (N,) bool: rows that a flag, of some parts, marks as the end of an episode."""
        flags = (self[part] for part in parts if part in self and part != "first")
        return np.any([np.zeros(len(self["states"]), bool), *flags], axis=0)

    def sort(self) -> None:
        """Join the rows of each episode, by ascending step; episodes are in the order of their first rows.

        Numbers that begin again count as others if flags mark all ends.
        """
        if "episodes" not in self:
            return
        names, ids, steps = self.names, self["episodes"], self.get("steps")
        order = np.argsort(ids, kind="stable") if steps is None else np.lexsort((steps, ids))
        if steps is None and (np.diff(ids) < 0).any():
            borders = ids[1:] != ids[:-1]
            if self.marked()[:-1][borders].all():
                self["episodes"] = np.concatenate([[0], np.cumsum(borders)])
                return
            warn(
                f"{self.where}: rows of an episode ({names['episodes']!r}) do not lie together; they are joined in the "
                "order of the rows: add a column 'step' if they are shuffled; number episodes anew if their numbers "
                "begin again"
            )
        if steps is not None and names["steps"].lower() not in TIMES and np.abs(steps).max() < _DATES:
            is_repeated = (np.diff(ids[order]) == 0) & (np.diff(steps[order]) == 0)
            if is_repeated.any():
                row = int(order[int(np.argmax(is_repeated)) + 1])
                raise ValueError(
                    f"{self.where}: an episode ({names['episodes']!r}) has {names['steps']!r} {steps[row]:g} twice, "
                    f"again at row {row}: number episodes so that none has the number of another"
                )
        if (np.diff(order) != 1).any():
            self.keep(order)


@dataclass
class Ends:
    """Ends of episodes among N rows."""

    terminals: np.ndarray  # (N,) bool; the environment ended after this row
    closes: np.ndarray  # (N,) bool; the log says that the episode ends here, terminal or not
    inside: np.ndarray  # (N,) bool; terminal rows after which the episode goes on
    deciders: list[str]  # parts of the log that decided
    mixed: bool  # terminals may include steps at which a time limit cut episodes
    words: list[str]  # what decided beyond these parts
    unread: Sequence[str] = ()  # arrays that look like ends or numbers of episodes

    def __post_init__(self) -> None:
        self.timeouts = self.closes & ~self.terminals  # (N,) bool; the episode was cut after this row

    @property
    def last(self) -> np.ndarray:
        """(N,) bool: last rows of episodes."""
        return (self.terminals & ~self.inside) | self.timeouts


def list_rows(rows: np.ndarray, what: str = "rows") -> str:
    """Return how many rows (N,) bool are marked, and the first of them, for messages."""
    return f"{np.count_nonzero(rows):,} {what}, such as row {int(np.argmax(rows))}"


def counts_up(steps: np.ndarray) -> bool:
    """Return whether steps ascend, and begin again with the smallest one."""
    restarts = steps[1:] <= steps[:-1]
    return not restarts.any() or bool((steps[1:][restarts] <= steps.min()).mean() > NEARLY_ALL)


def are_discrete(sample: np.ndarray) -> bool:
    """Return whether most states of a sample (K, dim_s) occur again."""
    return len(np.unique(sample, axis=0)) <= len(sample) / 2


def scaled_distance(sample: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a function of two tables of states (K, dim_s): distances (K,) in standard deviations of a sample."""
    scale = sample.std(0, dtype=np.float64)
    scale[scale == 0] = 1
    return lambda first, second: np.sqrt((((first - second) / scale) ** 2).mean(1))
