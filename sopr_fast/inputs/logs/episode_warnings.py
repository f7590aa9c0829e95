"""Checks of what a log says of its episodes: what may be read wrong is refused, or warned of."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...runtime.text import join_some
from ...runtime.warn import warn
from .keys import ENDS, Parts, is_inverted, likely_part, named_like_ends

NEARLY_ALL = 0.9
_COUNTED = 4096  # rows whose states are counted
_FEWEST_ROWS = 500
_FEWEST_EPISODES = 3


def question_flags(
    parts: Parts, flags: Mapping[str, np.ndarray], codes: np.ndarray | None, linked: np.ndarray | None
) -> None:
    """Raise if flags of ends mark first rows, by episodes' numbers (N,) or next states; warn if they may."""
    borders = codes[1:] != codes[:-1] if codes is not None else linked if linked is None else ~linked
    for part, marked in ((part, flags[part]) for part in ("terminals", "dones", "last") if part in flags):
        name = parts.names[part]
        advice = f"pass columns={{'first': {name!r}}}, or move its values up by one row"
        if "steps" in parts.names:
            advice += f"; if {parts.names['steps']!r} counts down, leave it out"
        if borders is None and marked[0] and not marked[-1] and marked.sum() > 1:
            warn(f"{parts.where}: {name!r} marks the first row and not the last: if it marks first rows, {advice}")
        elif borders is not None and borders.any() and borders.mean() < 0.5:
            first, last = np.append(True, borders), np.append(borders, True)
            of_longer = marked & (first != last)
            if (first & of_longer).sum() > max(1, NEARLY_ALL * of_longer.sum()):
                raise ValueError(
                    f"{parts.where}: {name!r} marks the first rows of episodes, not the last ones: {advice}"
                )


def number_rows(
    parts: Parts,
    codes: np.ndarray,
    steps: np.ndarray | None,
    flags: Mapping[str, np.ndarray],
    linked: np.ndarray | None,
) -> bool:
    """Return whether numbers of episodes (N,) are those of rows; warn of that, or if they contradict flags of ends."""
    name, changes = parts.names["episodes"], np.append(codes[1:] != codes[:-1], True)
    marks = {part: flags[part] for part in ("terminals", "timeouts", "dones", "last") if part in flags}
    marked = np.any([*marks.values()], axis=0) if marks else np.zeros_like(changes)
    why = ""
    if changes[:-1].all() and not marked[:-1].all():
        if steps is not None and counts_up(steps) and np.ptp(steps) > 0 and (np.diff(steps) <= 0).any():
            why = f"{parts.names['steps']!r} counts several steps"
        elif linked is not None and linked.mean() > 0.5:
            why = f"{parts.names['next_states']!r} lead to the next row"
        elif linked is None and marks:
            why = f"{parts.names[next(iter(marks))]!r} does not mark all rows"
        if why:
            warn(
                f"{parts.where}: {name!r} differs in each row, but {why}, so that it counts rows: it is left out; pass "
                "sopr_fast.load_log(…, max_episode_steps=1) (--max-episode-steps 1) if each row is an episode"
            )
    part = next((part for part in ("dones", "last") if part in flags), None)
    if part is not None and (inside := flags[part] & ~changes).any():
        warn(
            f"{parts.where}: {parts.names[part]!r} marks {np.count_nonzero(inside):,} rows, such as row "
            f"{int(np.argmax(inside))}, inside of episodes by {name!r}: episodes end where either says so; leave one "
            "of them out"
        )
    return bool(why)


def warn_of_shifted_rewards(rewards: np.ndarray, episodes: np.ndarray, what: str) -> None:
    """Warn if rewards (N,) are 0 in the first row of each of three or more episodes, and seldom elsewhere."""
    first = rewards[episodes[:-1]] == 0
    if len(first) >= _FEWEST_EPISODES and first.all() and (rewards == 0).sum() - len(first) < 0.1 * len(rewards):
        warn(
            f"{what} are 0 in the first row of each episode and seldom elsewhere, as where a row holds the reward of "
            "the action before it: move them up by one row then"
        )


def find_resets(
    where: str, states: np.ndarray, following: np.ndarray | None, ends: np.ndarray, rewards: np.ndarray
) -> np.ndarray:
    """Return (N,) bool: rows after ends (N,) that only lead from an episode's last state to the next first one; warn.

    Vector environments of gymnasium reset themselves in the step after an end, whose reward is 0.
    """
    found = np.zeros(len(states), bool)
    after = np.flatnonzero(ends[:-2]) + 1
    if following is not None:
        after = after[(following[after - 1] == states[after]).all(1)]
    if len(after) < max(_FEWEST_EPISODES, NEARLY_ALL * ends[:-2].sum()) or rewards[after].any() or ends[after].any():
        return found
    usual = np.flatnonzero(~ends[:-1])
    usual = usual[:: 1 + len(usual) // _COUNTED]
    scale = states[usual].std(0, dtype=np.float64)
    scale[scale == 0] = 1

    def distance(rows: np.ndarray) -> np.ndarray:
        return np.sqrt(
            (((states[rows + 1] if following is None else following[rows]) - states[rows]) / scale) ** 2
        ).mean(1)

    jumps = distance(after)
    if (jumps > 2 * np.median(distance(usual))).mean() < 0.7 or np.median(jumps) < 1.2 * np.median(distance(after - 1)):
        return found
    warn(
        f"{where}: {len(after):,} rows after ends, such as row {after[0]}, are left out: with reward 0 they only lead "
        "from a last state to a first one, as vector environments that reset themselves write them"
    )
    found[after] = True
    return found


def warn_of_unread(parts: Parts) -> None:
    """Warn of arrays that look like ends and are not read: by their names, or where nothing else marks ends."""
    is_marked = not {*ENDS, "episodes"}.isdisjoint(parts.arrays)
    named = [name for name in parts.unread if named_like_ends(name) or not is_marked]
    if "episodes" in parts.arrays:
        named = [name for name in named if likely_part(name) != "episodes"]
    if named:
        part = likely_part(named[0])
        listed = join_some([repr(name) for name in named])
        looks, is_read, it_is = ("looks", "is", "it is") if len(named) == 1 else ("look", "are", "they are")
        zero = "; 0 marks ends there" if is_inverted(named[0]) else ""
        zero += f" (columns={{'valid': {named[0]!r}}} if 0 marks padding)" if "mask" in named[0] else ""
        warn(
            f"{parts.where}: {listed} {looks} like {'numbers' if part == 'episodes' else 'ends'} of episodes and "
            f"{is_read} not read: if {it_is}, name the part, such as sopr_fast.load_log(…, columns={{{part!r}: "
            f"{named[0]!r}}}) (--columns {part}={named[0]}){zero}; parts are {', '.join((*ENDS, 'episodes'))}"
        )


def warn_of_missing_steps(parts: Parts, steps: np.ndarray, closes: np.ndarray) -> None:
    """Warn if most steps (N,) grow by the same number inside of episodes, and others by more."""
    growth = np.where(closes[:-1], 0, np.diff(steps))
    inside = growth > 0
    unit = growth[inside].min(initial=np.inf)
    missing = growth > 1.5 * unit
    if missing.any() and (growth[inside] <= 1.5 * unit).mean() > 0.5:
        row = int(np.argmax(missing))
        name = parts.names["steps"]
        warn(
            f"{parts.where}: {np.count_nonzero(missing):,} steps are missing, such as after {name!r} {steps[row]:g}, "
            f"which {steps[row + 1]:g} follows: the state there counts as next state; add next states, or leave such "
            "episodes out"
        )


def warn_of_shuffled_rows(where: str, states: np.ndarray, ends: np.ndarray) -> None:
    """Warn if states (N, dim_s) that vary are as far from those of the next rows as from any others."""
    rows = np.flatnonzero(~ends[:-1])
    rows = rows[:: 1 + len(rows) // _COUNTED]
    if len(rows) < _FEWEST_ROWS or not (spread := states[rows].var(0, dtype=np.float64)).any():
        return
    few = states[rows]
    if len(np.unique(few, axis=0)) <= len(few) / 2:
        return  # numbers of discrete states say nothing of distances
    squares = ((states[rows + 1] - states[rows])[:, spread > 0] ** 2).mean(0, dtype=np.float64)
    if (squares / spread[spread > 0]).mean() > 2 * NEARLY_ALL:
        warn(
            f"{where}: states are as far from those of the next rows as from any others, as in a shuffled log: next "
            "states and episodes are wrong then; add columns 'episode' and 'step', or pass max_episode_steps=1 if "
            "every row is an episode"
        )


def counts_up(steps: np.ndarray) -> bool:
    """Return whether steps ascend, and begin again with the smallest one."""
    restarts = steps[1:] <= steps[:-1]
    return not restarts.any() or bool((steps[1:][restarts] <= steps.min()).mean() > NEARLY_ALL)
