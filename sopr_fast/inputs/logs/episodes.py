"""Ends of episodes: the one place that decides, and describes its decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...runtime.warn import warn
from .episode_warnings import (
    counts_up,
    number_rows,
    question_flags,
    warn_of_missing_steps,
    warn_of_shuffled_rows,
    warn_of_unread,
)
from .keys import ENDS, TIMES, Parts

_SAMPLED = 65536  # rows
_SHORTEST_LIMIT = 20  # steps: ends at fewer are those of a task with as many steps
_COUNTED = 4096  # rows whose states are counted
_USUAL = 0.99  # share of steps that are no longer than what counts as usual
_MIXED = ("terminals", "dones", "last", "first", "episodes", "steps")  # ends that may be time limits
_BANDIT = 0.9  # share of terminal rows beyond which a log is taken as one of one-step episodes


@dataclass(frozen=True, eq=False)
class Ends:
    """Ends of episodes among N rows.

    Attributes:
        terminals: (N,) bool; the environment ended after this row.
        closes: (N,) bool; the episode ends here, terminal or not.
        inside: (N,) bool; terminal rows after which the episode goes on.
        deciders: Parts of the log that decided.
        mixed: Whether terminals may include steps at which a time limit cut episodes.
    """

    terminals: np.ndarray
    closes: np.ndarray
    inside: np.ndarray
    deciders: tuple[str, ...]
    mixed: bool = False


def order_rows(
    ids: np.ndarray | None,
    steps: np.ndarray | None,
    flags: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    where: str,
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the order that joins the rows of each episode by ascending step, None if they are in it; and ids.

    Episodes are in the order of their first rows. Numbers that begin again count as others if flags mark all ends.
    """
    if ids is None:
        return None, None
    codes = _codes(ids)
    order = np.argsort(codes, kind="stable") if steps is None else np.lexsort((steps, codes))
    in_order = np.array_equal(order, np.arange(len(ids)))
    if steps is None and not in_order:
        borders = codes[1:] != codes[:-1]
        if _any_end(flags, len(ids))[:-1][borders].all():
            return None, np.concatenate([[0], np.cumsum(borders)])
        warn(
            f"{where}: rows of an episode ({names['episodes']!r}) do not lie together; they are joined in the order "
            "of the rows: add a column 'step' if they are shuffled; number episodes anew if their numbers begin again"
        )
    is_repeated = (np.diff(codes[order]) == 0) & (steps is not None and np.diff(steps[order]) == 0)
    if steps is not None and is_repeated.any() and names["steps"].lower() not in TIMES:
        row = int(order[int(np.argmax(is_repeated)) + 1])
        raise ValueError(
            f"{where}: {names['episodes']!r} {ids[row]} has {names['steps']!r} {steps[row]} twice, again at row "
            f"{row}: number episodes so that none has the number of another"
        )
    return None if in_order else order, ids


def _any_end(flags: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    """Return (N,) bool: rows that a flag marks as the end of an episode."""
    return np.any([np.zeros(count, bool), *(x for part, x in flags.items() if part != "first")], axis=0)


def take(values: Any, rows: np.ndarray | None) -> Any:
    """Return rows of an array; all if `rows` is None."""
    return values if rows is None or values is None else values[rows]


def decide(
    parts: Parts,
    states: np.ndarray,
    following: np.ndarray | None,
    flags: Mapping[str, np.ndarray],
    ids: np.ndarray | None,
    steps: np.ndarray | None,
    limit: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Return terminals, timeouts and terminals inside of episodes, (N,) bool each, and what decided, in words."""
    where, names, count = parts.where, parts.names, len(states)
    if limit == 1:
        return np.ones(count, bool), np.zeros(count, bool), np.zeros(count, bool), ["max_episode_steps=1"]
    codes = None if ids is None else _codes(ids)
    linked = None if following is None else (following[:-1] == states[1:]).all(1)
    question_flags(parts, flags, codes, linked)
    if codes is not None and number_rows(parts, codes, steps, flags, linked):
        ids = None
    if codes is not None and codes.max() == 0 and _any_end(flags, count)[:-1].any():
        ids = None  # one number for all rows
    ends = _find_ends(parts, flags, ids, steps, count)
    terminals, deciders = ends.terminals.copy(), [repr(names[part]) for part in ends.deciders]
    inside = ends.inside.copy()
    if not {"dones", "last", "first", "episodes", "steps"} & {*ends.deciders}:
        inside |= _goes_on(states, following, terminals, ends.closes)
    if (inside_count := int(inside.sum())) and "terminals" in names:
        row = int(np.argmax(inside))
        warn(
            f"{where}: after {inside_count:,} terminal rows ({names['terminals']!r}), such as row {row}, the "
            "trajectory goes on, as beyond a goal: no episode begins there, and values end there; leave these flags "
            f"out if they mark no ends, or pass columns={{'first': {names['terminals']!r}}} if they mark first rows"
        )
    timeouts = ends.closes & ~terminals
    if following is None and "steps" in ends.deciders and steps is not None:
        warn_of_missing_steps(parts, steps, ends.closes)
    elif following is None:
        warn_of_shuffled_rows(where, states, terminals | ends.closes)
    if following is None and ids is None and steps is not None and not counts_up(steps):
        warn(
            f"{where}: {names['steps']!r} does not count steps up from its smallest, so that rows are shuffled or lack "
            "numbers of episodes: name these by sopr_fast.load_log(…, columns={'episodes': …}) (--columns "
            "episodes=…)"
        )
    if limit is None and ends.mixed and (terminals & ~inside).any() and not terminals[:-1].all():
        mixed = next(part for part in _MIXED if part in ends.deciders)
        is_flag = mixed in ("terminals", "dones") or names[mixed] != names.get("next_states")
        what = repr(names[mixed]) if is_flag and mixed in ENDS and mixed != "first" else f"ends by {names[mixed]!r}"
        at = ", several of them at the greatest length" if mixed == "terminals" else ""
        warn(
            f"{where}: {what} are taken as terminals{at}; if a time limit cut episodes, name the steps it cut "
            "'timeouts', or pass sopr_fast.load_log(…, max_episode_steps=…) (--max-episode-steps …)"
        )
    elif limit is None and _lacks_cuts(ends) and (following is None or _are_shifted(linked, terminals, inside)):
        warn(
            f"{where}: neither next states nor timeouts show where a time limit cut an episode: there, a last state "
            "seems to lead to the first of the next episode; pass sopr_fast.load_log(…, max_episode_steps=…) "
            "(--max-episode-steps …), 1 for episodes of one step"
        )
    if linked is not None:
        timeouts = _with_jumps(parts, np.append(~linked, False), terminals, timeouts, limit, deciders)
    if limit is not None:
        ended = (terminals & ~inside) | timeouts
        longest = int(np.diff(np.flatnonzero(ended), prepend=-1).max(initial=0))
        if longest > limit and ends.closes.any() and {"timeouts", "episodes"} & {*ends.deciders}:
            warn(
                f"{where}: max_episode_steps={limit} cuts episodes, the longest of which has {longest:,} steps by "
                f"{' and '.join(deciders)}; pass the time limit of the environment, or leave it out"
            )
        reached = _at_limit(ended, limit)
        if ends.mixed:
            terminals &= ~reached
        timeouts |= reached & ~terminals
        deciders.append(f"max_episode_steps={limit}")
    if parts.unread and not parts.mapped:
        warn_of_unread(parts)
    return terminals, timeouts, inside, deciders


def _are_shifted(linked: np.ndarray | None, terminals: np.ndarray, inside: np.ndarray) -> bool:
    """Return whether next states are the states of the next rows at ends too, as if shifted without regard to them."""
    ended = (terminals & ~inside)[:-1]
    return linked is not None and bool(ended.any() and linked[ended].all())


def _lacks_cuts(ends: Ends) -> bool:
    """Return whether flags show no cut, though there may be some: there are no flags of cuts, or no ends at all."""
    decided = {*ends.deciders}
    if decided <= {"terminals"}:
        lengths = np.diff(np.flatnonzero(np.append(ends.terminals[:-1], True)), prepend=-1)
        return not (lengths == lengths[0]).all() or (len(lengths) == 1 and not ends.terminals[-1])
    return decided <= {"terminals", "timeouts", "dones"} and not (ends.closes | ends.terminals).any()


def _find_ends(
    parts: Parts, flags: Mapping[str, np.ndarray], ids: np.ndarray | None, steps: np.ndarray | None, count: int
) -> Ends:
    """Return the ends by flags, (N,) bool by part, and by (N,) episodes and steps, each by its meaning."""
    names, none = parts.names, np.zeros(count, bool)
    terminals, timeouts, dones = flags.get("terminals"), flags.get("timeouts", none), flags.get("dones")
    last, used = _last_rows(flags, ids, steps, count)
    deciders = tuple([part for part in ("terminals", "dones", "timeouts") if part in flags] + used)
    if terminals is not None and dones is not None and (terminals & ~dones).any():
        raise ValueError(
            f"{parts.where}: {names['terminals']!r} mark {np.count_nonzero(terminals & ~dones):,} ends that "
            f"{names['dones']!r} do not; choose one by columns={{'terminals': {names['terminals']!r}}}"
        )
    closes = timeouts | (none if last is None else last) | (none if dones is None else dones)
    if terminals is not None:
        if timeouts.sum() > 1 and terminals[timeouts].all() and terminals.mean() <= _BANDIT:
            warn(
                f"{parts.where}: {names['terminals']!r} mark all {timeouts.sum():,} rows of {names['timeouts']!r} too, "
                "as 'dones' do: these rows are taken as timeouts; leave 'timeouts' out if the environment ended there"
            )
            terminals = terminals & ~timeouts
        inside = terminals & ~closes if last is not None or dones is not None else none.copy()
        inside[-1] = False
        mixed = "timeouts" not in flags and dones is None and _end_at_limit(terminals, closes)
        return Ends(terminals, closes, inside, deciders, mixed)
    marked = dones if dones is not None else last
    if marked is None or ("next_states" in parts.arrays and dones is None and not {"last", "first"} & {*used}):
        return Ends(none, closes, none, deciders)
    has_both = "timeouts" in flags or (dones is not None and last is not None and bool((last & ~dones)[:-1].any()))
    return Ends(marked & ~timeouts, closes, none, deciders, mixed=not has_both)


def _last_rows(
    flags: Mapping[str, np.ndarray], ids: np.ndarray | None, steps: np.ndarray | None, count: int
) -> tuple[np.ndarray | None, list[str]]:
    """Return the last row of each episode, None if unknown, and the parts that decided."""
    last, used = np.zeros(count, bool), []
    if "last" in flags:
        last |= flags["last"]
        used.append("last")
    if "first" in flags:
        last[:-1] |= flags["first"][1:]
        used.append("first")
    if ids is not None:
        codes = _codes(ids)
        last[:-1] |= codes[1:] != codes[:-1]
        used += ["episodes"] if steps is None else ["episodes", "steps"]
    elif steps is not None and not used:
        restarts = steps[1:] <= steps[:-1]
        if restarts.any() and counts_up(steps):
            last[:-1] |= restarts
            used.append("steps")
    if not used:
        return None, used
    last[-1] = True
    return last, used


def _goes_on(states: np.ndarray, next_states: np.ndarray | None, terminals: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Return (N,) bool: terminal rows that lead on to the next row, as where a trajectory goes on beyond its goal.

    The next state, if it is known, is the state of the next row, and the step there is no longer than usual steps are;
    an environment that was reset is farther away. If usual steps are as long as the way between any two states, only
    terminal rows in a row count.
    """
    none = np.zeros(len(states), bool)
    candidates = terminals & ~cuts
    candidates[-1] = False
    if terminals.mean() > _BANDIT or not candidates.any():
        return none
    rows = np.flatnonzero(candidates)
    if next_states is not None:
        rows = rows[(next_states[rows] == states[rows + 1]).all(1)]
    plain = np.flatnonzero(~(terminals | cuts)[:-1])
    random = np.random.default_rng(0)
    plain = plain if len(plain) <= _SAMPLED else np.sort(random.choice(plain, _SAMPLED, replace=False))
    if not len(rows) or not len(plain):
        return none
    scale = states[plain].std(0, dtype=np.float64)
    scale[scale == 0] = 1

    def distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.sqrt((((states[first] - states[second]) / scale) ** 2).mean(1))

    usual = np.quantile(distance(plain, plain + 1), [0.5, _USUAL])
    apart = np.median(distance(plain, random.permutation(plain)))
    if usual[0] < apart / 2:
        rows = rows[distance(rows, rows + 1) <= min(2 * usual[1], apart / 2)]
        few = states[plain[:_COUNTED]]
        is_discrete = len(np.unique(few, axis=0)) <= len(few) / 2
        share = 0.5 if is_discrete else 0.1 if next_states is None else 0
    else:
        rows = rows[terminals[rows + 1] | terminals[rows - 1]]
        share = 1 - 0.5 * (1 - terminals.mean()) ** 2  # well beyond the share by chance, as among short episodes
    if len(rows) <= share * candidates.sum():
        return none  # by chance, an episode may begin where the one before ended
    none[rows] = True
    return none


def _end_at_limit(terminals: np.ndarray, closes: np.ndarray) -> bool:
    """Return whether several of the terminal rows are the last ones of episodes of the greatest length."""
    ends = np.flatnonzero(terminals | closes)
    lengths = np.diff(ends, prepend=-1)[terminals[ends]]
    longest = lengths.max(initial=0)
    return bool(longest >= _SHORTEST_LIMIT and (lengths == longest).sum() >= max(3, 0.1 * len(lengths)))


def _at_limit(ends: np.ndarray, limit: int) -> np.ndarray:
    """Return (N,) bool that marks every `limit`-th row since the last end, ends included."""
    starts = np.concatenate([[0], np.flatnonzero(ends[:-1]) + 1])
    steps = np.arange(len(ends)) - np.repeat(starts, np.diff(starts, append=len(ends)))
    return steps % limit == limit - 1


def _with_jumps(
    parts: Parts,
    jumps: np.ndarray,
    terminals: np.ndarray,
    timeouts: np.ndarray,
    limit: int | None,
    deciders: list[str],
) -> np.ndarray:
    """Return timeouts (N,) bool, with the jumps (N,) bool, rows whose next state is not the state of the next row."""
    where, names = parts.where, parts.names
    alive = ~(terminals | timeouts)[:-1]
    unmarked = np.flatnonzero(jumps[:-1] & alive)
    if len(unmarked) > alive.sum() / 2:
        warn(
            f"{where}: rows do not follow each other: after most steps, {names['next_states']!r} are not the "
            f"{names['states']!r} of the next row, as in a shuffled log or one of several environments in turn; "
            "initial states, episodes' returns and importance weights are wrong then: add columns 'episode' and "
            "'step', or pass max_episode_steps=1 if every row is an episode"
        )
    elif timeouts.any() and len(unmarked):
        warn(
            f"{where}: after {len(unmarked):,} rows, such as row {unmarked[0]}, the next row does not follow, though "
            "nothing marks an end there: these rows are taken as timeouts; mark them if that is right"
        )
        timeouts[unmarked] = True
    if not timeouts.any():
        jumps[-1] = True
        timeouts = ~terminals & jumps
        deciders += [f"jumps of {names['next_states']!r}"] * bool(timeouts[:-1].any())
    if not {*ENDS} & {*parts.arrays} and limit is None:
        warn(
            f"{where}: nothing marks terminal states, so that all episodes count as cut by a time limit; name them "
            "'terminals'"
        )
    return timeouts


def follow(
    states: np.ndarray,
    following: np.ndarray | None,
    terminals: np.ndarray,
    timeouts: np.ndarray,
    inside: np.ndarray,
    where: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps to drop, (N,) bool, whose next states are unknown, and the next states (N, dim_s).

    Without next states they are the states of the next rows, and a terminal step's own state. As in d4rl's
    `qlearning_dataset`, the last step of an episode that was cut is dropped.
    """
    if following is None:
        dropped = timeouts.copy()
        dropped[-1] |= not terminals[-1]
        rows = np.arange(len(states))
        return dropped, states[np.where(terminals & ~inside, rows, np.minimum(rows + 1, len(states) - 1))]
    dropped, cut, after = np.zeros(len(states), bool), timeouts[:-1], following[:-1]
    resets = cut & (after == states[1:]).all(1) & (after != states[:-1]).any(1)
    if resets.sum() > cut.sum() / 2:
        warn(
            f"{where}: at {resets.sum():,} of {cut.sum():,} time limits, the next state is the first state of the next "
            "episode, as environments that reset themselves return it; these steps are dropped: replace it by the "
            "episode's last state, or leave out the time limits if the environment went on"
        )
        dropped = np.append(resets, timeouts[-1])
    return dropped, following


def verdict(terminals: np.ndarray, episodes: np.ndarray, inside: int, deciders: list[str]) -> str:
    """Return how many episodes there are, how they end and what decided, in words."""
    count, lengths = len(episodes) - 1, np.diff(episodes)
    ended = int(terminals[episodes[1:] - 1].sum())
    low, high = int(lengths.min()), int(lengths.max())
    steps = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    words = f"episodes: {count:,} of {steps} steps; {ended:,} end in a terminal state, {count - ended:,} are cut"
    if inside:
        words += f"; they go on after {inside:,} terminal rows"
    return f"{words}; decided by {' and '.join(deciders) if deciders else 'no array'}"


def _codes(ids: np.ndarray) -> np.ndarray:
    """Return (N,) int64 numbers of episodes in the order of their first rows."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)]
