"""Logged transitions in memory, made of arrays of their parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...runtime.containers import check_size
from ...runtime.files import naming
from ...runtime.text import counted, is_cost, percent
from .ends import WORDS, Statement
from .parts import FLAGS, Parts
from .schema import advise, check_needed, find_parts

_BLOCK = 8192  # rows
_COLUMNS = ("states", "actions", "rewards", "next_states", "terminals", "timeouts", "source", "log_probs")


@dataclass(frozen=True, eq=False, repr=False)
class Transitions:
    """N logged steps in order, episode after episode; made by `sopr_fast.load_log` or `Transitions.from_arrays`.

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
        summary: How many episodes there are, how they end, what said so, and which arrays were not read, in words.
        are_costs: Whether `rewards` are the negative of logged costs.
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
    summary: str = ""
    columns: str = ""
    are_costs: bool = False
    max_episode_steps: int | None = None

    @classmethod
    def from_arrays(cls, *, ends: str | None = None, max_episode_steps: int | None = None, **parts: Any) -> Transitions:
        """Make transitions of arrays of N rows, in the order in which they were logged.

        Where episodes end, and whether the environment ended there, must be said completely, such as by `terminals`
        and `truncations`, or by `episodes` and `ends`; `docs/files.md` lists all ways.

        Args:
            ends: See `sopr_fast.load_log`, as for `max_episode_steps`, and for errors.
            max_episode_steps: Time limit of the environment in steps.
            parts: Part of the log, or another of its names → array or tensor. `states` and `actions` (N, columns),
                `rewards` or `costs` (N,) are needed. `next_states` (N, dim_s), NaN where unknown: by default the state
                of the next row, and a step whose next state is unknown is left out. Flags (N,): `terminals`, where the
                environment ended; `truncations`, where a limit cut the episode; `dones`, either; `first`,
                first rows; `valid`, 0 in rows that only pad. Labels (N,): `episodes`; `agents`, whose rows do not
                follow each other. `steps` (N,) that count up by one in an episode, `times` (N,) that increase.
                `log_probs` or `probabilities` (N,) of the logged actions.
        """
        arrays = {name: values for name, values in parts.items() if values is not None}
        with naming("arrays"):
            given = find_parts(arrays, dict(zip(arrays, arrays, strict=True)))
            check_needed(given.arrays, arrays)
            return build(given, ends, max_episode_steps)

    def __len__(self) -> int:
        return len(self.states)

    def __repr__(self) -> str:
        return f"Transitions({len(self):,} steps; {self.summary})"

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
        parts: dict[str, Any] = {name: x[rows] for name in _COLUMNS if (x := getattr(self, name)) is not None}
        return replace(self, episodes=np.concatenate([[0], np.cumsum(np.diff(self.episodes)[episodes])]), **parts)

    def followed_by(self, other: Transitions) -> Transitions:
        """Return the episodes of this log, then those of another one.

        Raises:
            ValueError: The other log has other numbers of columns, or costs where this one has rewards.
        """
        for part in ("state", "action"):
            own, others = (getattr(log, f"{part}s").shape[1] for log in (self, other))
            if own != others:
                raise ValueError(f"{counted(others, f'{part} column')} follow a log of {own}: give both the same")
        if self.are_costs != other.are_costs:
            raise ValueError("one of two logs has costs, the other rewards: name both alike, see load_log's columns")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in _COLUMNS}
        pairs["source"] = self.source, self.source_count + other.source
        pairs["episodes"] = self.episodes, len(self) + other.episodes[1:]
        joined: dict[str, Any] = {
            name: None if any(x is None for x in pair) else np.concatenate(pair) for name, pair in pairs.items()
        }
        return replace(self, source_count=self.source_count + other.source_count, **joined)


def build(parts: Parts, word: str | None, limit: int | None, filled: np.ndarray | None = None) -> Transitions:
    """Check and convert the parts of a log, see `Transitions.from_arrays`, of the rows `filled` (N,) bool."""
    if word not in (None, *WORDS):
        raise ValueError(f"ends must be 'terminal' or 'cut', got {word!r}")
    check_size("the log", parts.peak())
    rows = _read(parts, filled)
    ended, cuts, said = Statement(rows, parts, limit, word).find()
    dropped = _follow(rows, ended, cuts)
    if dropped.all():
        raise ValueError("the next state of no step is known; add next states")
    rows |= {"terminals": ended, "timeouts": (cuts | np.append(dropped[1:], False)) & ~ended}
    _keep(rows, ~dropped)
    last = rows["terminals"] | rows["timeouts"]
    last[-1] = True
    steps: dict[str, Any] = {name: rows[name] for name in _COLUMNS if name in rows}
    log = Transitions(
        **steps,
        episodes=np.append(0, np.flatnonzero(last) + 1),
        source_count=parts.count or 0,
        columns=parts.columns,
        are_costs="costs" in parts.names,
        max_episode_steps=limit,
    )
    return replace(log, summary=_summary(log, parts, said, int(dropped.sum())))


def _read(parts: Parts, filled: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the values of all parts, see `Parts.read`, of the rows that count, and `source`, their numbers."""
    names = parts.names
    if "rewards" in parts.arrays and is_cost(names["rewards"]):
        raise ValueError(
            f"rewards are named {names['rewards']!r}, as if less were better: if they are costs, pass "
            f"{advise('costs', names['rewards'])}; else rename them"
        )
    rows = {"log_probs" if part == "probabilities" else part: parts.read(part) for part in parts.arrays}
    count, width = rows["states"].shape
    if (found := rows.get("next_states", rows["states"]).shape[1]) != width:
        raise ValueError(f"{names['next_states']!r} has {counted(found, 'column')}, {names['states']!r} {width}")
    if (costs := rows.pop("costs", None)) is not None:
        rows["rewards"] = np.negative(costs, out=costs)
    rows["source"] = np.arange(count)
    if filled is not None:
        _keep(rows, filled)
    if (valid := rows.pop("valid", None)) is not None:
        for part in (flag for flag in FLAGS if flag in rows):
            if (rows[part][1:] & ~rows[part][:-1] & ~valid[1:] & valid[:-1]).any():
                what = f"{names[part]!r} marks a row that {names['valid']!r} leaves out, and not the row before"
                raise ValueError(f"{what}: mark the last row of the episode that counts")
        if not valid.any():
            raise ValueError(f"{names['valid']!r} marks no row")
        _keep(rows, valid)
    return rows


def _keep(rows: dict[str, np.ndarray], kept: np.ndarray) -> None:
    """Keep only some of the rows, (N,) bool, in place, which takes no more memory."""
    for part, values in rows.items():
        count = 0
        for start in range(0, len(kept), _BLOCK):
            few = values[start : start + _BLOCK][kept[start : start + _BLOCK]]
            values[count : count + len(few)] = few
            count += len(few)
        rows[part] = values[:count]


def _follow(rows: dict[str, np.ndarray], ended: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Set the next states of N rows, of terminal steps their own; return (N,) bool, where they are unknown."""
    states = rows["states"]
    if "next_states" not in rows:
        rows["next_states"] = np.empty_like(states)
        rows["next_states"][:-1] = states[1:]
        rows["next_states"][ended | cuts] = states[ended | cuts]
        return cuts
    unknown = np.isnan(rows["next_states"][:, 0])
    rows["next_states"][unknown] = states[unknown]
    return unknown & ~ended


def _summary(log: Transitions, parts: Parts, said: list[str], dropped: int) -> str:
    """Return facts of a log in words: episodes, their ends and what said so, what was not read."""
    lengths = np.diff(log.episodes)
    ended = int(log.terminals[log.episodes[1:] - 1].sum())
    low, high = int(lengths.min()), int(lengths.max())
    shown = counted(high, "step") if low == high else f"{low:,} to {high:,} steps"
    sources = dict.fromkeys(repr(parts.names[x]) if x in parts.names else x for x in said)
    cut = len(lengths) - ended
    words = [
        f"episodes: {len(lengths):,} of {shown}; {ended:,} end{'s' * (ended == 1)} in a terminal state, {cut:,} "
        f"{'is' if cut == 1 else 'are'} cut; said by {' and '.join(sources)}"
    ]
    words += [f"{counted(dropped, 'last step')} left out, whose next state is unknown"] * bool(dropped)
    if "costs" in parts.names:
        words.append(f"rewards are the negative of {parts.names['costs']!r}")
    for name, x in (("state", log.states), ("action", log.actions)):
        if repeats := _repeated(x, log.episodes):
            words.append(f"{name}s repeat the one before in {percent(repeats)} of steps")
    return "; ".join(words) + parts.not_read


def _repeated(values: np.ndarray, episodes: np.ndarray) -> float:
    """Return in which share of the steps that are not the first of an episode the row equals the one before."""
    equal = np.ones(len(values) - 1, bool)
    for column in values.T:  # all at once could take as much memory as the log
        equal &= column[1:] == column[:-1]
    equal[episodes[1:-1] - 1] = False
    return float(equal.sum() / max(1, len(values) - (len(episodes) - 1)))
