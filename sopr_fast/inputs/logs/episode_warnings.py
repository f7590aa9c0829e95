"""Checks of what a log says of its episodes: what may be read wrong is refused, or warned of."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...runtime.arrays import as_numbers
from ...runtime.text import list_names
from ...runtime.warn import warn
from .arrays import shape_of
from .keys import ENDS, ENVIRONMENT, LIMIT, advise, is_inverted, last_word, part_of, words
from .parts import Parts
from .transitions import NEARLY_ALL, Ends, LoggedRows, are_discrete, counts_up, list_rows, scaled_distance

_COUNTED = 4096  # rows whose states are counted
_LOOKED_AT = 65536  # rows whose distance to the next one is computed
_NEAR = 0.05  # mean square of the usual step, in variances of the states
_FEWEST_ROWS = 500
_FEWEST_EPISODES = 3
_LARGE = 5  # times the mean size of the other rewards
SHUFFLED = "add columns 'episode' and 'step', or pass max_episode_steps=1 if every row is an episode"
_LARGEST_LOOK = 64 << 20  # bytes of an array that is looked into
_END = re.compile(
    r"(?<![a-z])(dones?|terminal\w*|terminat\w*|trunc\w*|time_?outs?|time_?limit\w*|ends?|ended|last|first|resets?|masks?|"
    r"absorb\w*|final|dead|died|death|over|stops?|crash\w*|fail\w*|starts?|discounts?|continu\w*|alive)(?![a-z])"
)
_ID = re.compile(
    r"(\w+_|icustay|stay|patient|subject|session|user)(id|num|number|idx|index)s?|(patient|subject|stay|session|rollout)s?"
)
_LENGTH = re.compile(
    r"((ep|episodes?|traj|trajectory|trajectories|rollouts?|path|seq|sequence|session)_)?(lens?|lengths?|ends?|starts?|indptr)"
)
_NEXT = re.compile(
    r".*next.*|.*(?<![a-z])(new|t1|tp1|prime|after|following|successor)(?![a-z]).*|(.*/)?(obs|observations?|states?|s)_?2"
)


def question_flags(log: LoggedRows) -> None:
    """Raise if flags of ends mark other rows than last ones, by episodes or next states; warn if they may."""
    borders = np.diff(log["episodes"]) != 0 if "episodes" in log else None if log.linked is None else ~log.linked
    for part in (part for part in ENDS if part in log):
        marked, where = log[part], f"{log.where}: {log.names[part]!r}"
        kind = "first rows" if part == "first" else "ends"
        inverse = f"marks {marked.mean():.1%} of rows as {kind}: if 0 marks {kind}, pass 1 minus it"
        advice = f"pass {advise('first', log.names[part])}, or move its values up by one row"
        if "steps" in log.names:
            advice += f"; if {log.names['steps']!r} counts down, leave it out"
        if borders is None and NEARLY_ALL < marked.mean() < 1:
            warn(f"{where} {inverse}")
        elif borders is None and part != "first" and marked[0] and not marked[-1] and marked.sum() > 1:
            warn(f"{where} marks the first row and not the last: if it marks first rows, {advice}")
        elif borders is not None and borders.any() and borders.mean() < 0.5:
            first, last = np.append(True, borders), np.append(borders, True)
            before = np.append(last[1:], False) & ~last
            faults = [(~marked & (marked.mean() > 0.5), first if part == "first" else last, inverse)]
            if part != "first":
                misplaced = f"marks the first rows of episodes, not the last ones: {advice}"
                faults += [(marked & (first != last), first, misplaced)]
                faults += [
                    (marked, before, "marks rows before the last ones of episodes: move its values down by one row")
                ]
            for rows, place, fault in faults:
                if (rows & place).sum() > max(1, NEARLY_ALL * rows.sum()):
                    raise ValueError(f"{where} {fault}")
            if marked.all():
                warn(f"{where} {inverse}")


def number_rows(log: LoggedRows) -> bool:
    """Return whether numbers of episodes are those of rows; warn of that, or if they contradict flags of ends."""
    names, ids, steps = log.names, log["episodes"], log.get("steps")
    changes = np.append(ids[1:] != ids[:-1], True)
    is_number_of_row = False
    if changes[:-1].all() and not log.marked()[:-1].all():
        restarts = steps is not None and counts_up(steps) and np.ptp(steps) > 0 and (np.diff(steps) <= 0).any()
        follows = {*ENDS} - {"first"} & log.keys() if log.linked is None else log.linked.mean() > 0.5
        is_number_of_row = bool(restarts or follows)
    if is_number_of_row:
        warn(
            f"{log.where}: {names['episodes']!r} differs in each row, but episodes are longer by steps, next states or "
            f"flags, so that it counts rows: it is left out; if each row is an episode, {LIMIT.replace('…)', '1)')}"
        )
    part = next((part for part in ("dones", "last") if part in log), None)
    if part is not None and (inside := log[part] & ~changes).any() and names["episodes"] != ENVIRONMENT:
        warn(
            f"{log.where}: {names[part]!r} marks {list_rows(inside)}, inside of episodes by {names['episodes']!r}: "
            "episodes end where either says so; leave one of them out"
        )
    return is_number_of_row


def warn_of_ends(log: LoggedRows, ends: Ends, limit: int | None) -> None:
    """Warn of ends that the rows around them, or the numbers of steps, contradict, and of cuts that nothing marks."""
    where, names, terminals, linked = log.where, log.names, ends.terminals, log.linked
    if ends.inside.any() and "terminals" in names:
        name = names["terminals"]
        warn(
            f"{where}: after {list_rows(ends.inside, f'terminal rows ({name!r})')}, the trajectory goes on, as beyond "
            "a goal: no episode begins there, and values end there; leave these flags out if they mark no ends, add "
            f"numbers of episodes if some end there, or pass {advise('first', name)} if they mark first rows"
        )
    if linked is None and "steps" in ends.deciders:
        _warn_of_missing_steps(log, log["steps"], ends)
    elif linked is None:
        _warn_of_jumps(log, ends)
    if linked is None and "episodes" not in log and "steps" in log and not counts_up(log["steps"]):
        warn(
            f"{where}: {names['steps']!r} does not count steps up from its smallest, so that rows are shuffled or lack "
            f"numbers of episodes: name these by {advise('episodes')}"
        )
    if limit is not None:
        return
    ended = (terminals & ~ends.inside)[:-1]
    if ends.mixed and (terminals & ~ends.inside).any() and not terminals[:-1].all():
        warn(
            f"{where}: ends by {names[ends.deciders[0]]!r} are taken as terminals; if a time limit cut some, name the "
            f"steps it cut 'timeouts', or {LIMIT}"
        )
    # Next states that lead on at ends too were shifted without regard to them.
    elif _lacks_cuts(ends) and (linked is None or (ended.any() and linked[ended].all())):
        warn(
            f"{where}: neither next states nor timeouts show where a time limit cut an episode: there, a last state "
            f"seems to lead to the first of the next episode; {LIMIT}, 1 for episodes of one step"
        )


def _lacks_cuts(ends: Ends) -> bool:
    """Return whether flags show no cut, though there may be some: there are no flags of cuts, or no ends at all."""
    decided = {*ends.deciders}
    if decided <= {"terminals"}:
        lengths = np.diff(np.flatnonzero(np.append(ends.terminals[:-1], True)), prepend=-1)
        return not (lengths == lengths[0]).all() or (len(lengths) == 1 and not ends.terminals[-1])
    return decided <= {"terminals", "timeouts", "dones"} and not (ends.closes | ends.terminals).any()


def _warn_of_missing_steps(log: LoggedRows, steps: np.ndarray, ends: Ends) -> None:
    """Warn if most steps grow by the same number inside of episodes, and others by more."""
    growth = np.where(ends.closes[:-1], 0, np.diff(steps))
    inside = growth > 0
    unit = growth[inside].min(initial=np.inf)
    missing = growth > 1.5 * unit
    if missing.any() and (growth[inside] <= 1.5 * unit).mean() > 0.5:
        row = int(np.argmax(missing))
        warn(
            f"{log.where}: {np.count_nonzero(missing):,} steps are missing, such as after {log.names['steps']!r} "
            f"{steps[row]:g}, which {steps[row + 1]:g} follows: the state there counts as next state; add next "
            "states, or leave such episodes out"
        )


def _warn_of_jumps(log: LoggedRows, ends: Ends) -> None:
    """Warn if states that vary are as far from those of the next rows as from any others; or some are, without cuts."""
    states, rows = log["states"], np.flatnonzero(~(ends.terminals | ends.closes)[:-1])[:_LOOKED_AT]
    few = states[rows[:: 1 + len(rows) // _COUNTED]]
    if len(rows) < _FEWEST_ROWS or not (spread := few.var(0, dtype=np.float64)).any():
        return
    if are_discrete(few):
        return  # numbers of discrete states say nothing of distances
    varies = spread > 0
    squares = ((states[rows + 1] - states[rows])[:, varies] ** 2 / spread[varies]).mean(1)  # 2 of any two rows
    if squares.mean() > 2 * NEARLY_ALL:
        warn(
            f"{log.where}: states are as far from those of the next rows as from any others, as in a shuffled log: "
            f"next states and episodes are wrong then; {SHUFFLED}"
        )
    has_no_cut = {*ends.deciders} == {"terminals", "timeouts"} and not ends.timeouts.any()
    far, marked = rows[squares > 1] if np.median(squares) < _NEAR else rows[:0], ends.terminals | ends.closes
    for way, after in (("down", far[far > 0] - 1), ("up", far + 1)):
        moved = after[marked[after]]
        if len(moved) > max(_FEWEST_EPISODES, NEARLY_ALL * len(far)):
            warn(
                f"{log.where}: states jump one row next to {len(moved):,} ends, such as row {moved[0]}, as where flags "
                f"are off by one row: move their values {way} by one row"
            )
    starts = states[np.flatnonzero(np.append(True, marked[:-1]))].mean(0, dtype=np.float64)
    to_start = ((states[far + 1] - starts)[:, varies] ** 2 / spread[varies]).mean(1)
    if has_no_cut and far.size and np.median(to_start) < 1:  # else something in the environment stops or moves it
        warn(
            f"{log.where}: states jump after {len(far):,} rows, such as row {far[0]}, as far as to any others, but "
            f"{log.names['timeouts']!r} mark no cut: mark those, or {LIMIT}, if a time limit cut episodes there"
        )


def find_resets(log: LoggedRows) -> np.ndarray:
    """Return (N,) bool: rows after ends that only lead from an episode's last state to the next first one; warn.

    Vector environments of gymnasium reset themselves in the step after an end, whose reward is 0.
    """
    states, following, rewards = log["states"], log.get("next_states"), log["rewards"]
    found, ends = np.zeros(len(states), bool), log.marked(("terminals", "timeouts", "dones"))
    if "episodes" in log:
        ends[:-1] &= np.diff(log["episodes"]) == 0
    after = np.flatnonzero(ends[:-2]) + 1
    if following is not None:
        after = after[(following[after - 1] == states[after]).all(1)]
    if len(after) < max(_FEWEST_EPISODES, NEARLY_ALL * ends[:-2].sum()) or rewards[after].any() or ends[after].any():
        return found
    usual = np.flatnonzero(~ends[:-1])
    usual = usual[:: 1 + len(usual) // _COUNTED]
    if are_discrete(states[usual]):  # then last states are found nowhere else
        seen = {state.tobytes() for state in np.unique(np.delete(states, [*after, -1], axis=0), axis=0)}
        is_reset = not any(state.tobytes() in seen for state in states[after])
    else:
        scaled = scaled_distance(states[usual])

        def distance(rows: np.ndarray) -> np.ndarray:
            return scaled(states[rows + 1] if following is None else following[rows], states[rows])

        jumps = distance(after)
        is_far = (jumps > 2 * np.median(distance(usual))).mean() >= 0.7
        is_reset = is_far and np.median(jumps) >= 1.2 * np.median(distance(after - 1))
    if not is_reset:
        return found
    warn(
        f"{log.where}: {len(after):,} rows after ends, such as row {after[0]}, are left out: with reward 0 they only "
        "lead from a last state to a first one, as vector environments that reset themselves write them"
    )
    found[after] = True
    return found


def warn_of_rewards(rewards: np.ndarray, episodes: np.ndarray, what: str) -> None:
    """Warn if rewards (N,) of three or more episodes seem to lie one row late, or to be sums of the episode."""
    first, starts = rewards[episodes[:-1]], episodes[:-1]
    if len(first) < _FEWEST_EPISODES or (np.diff(episodes) == 1).any():
        return
    if not first.any() and (rewards == 0).sum() - len(first) < 0.1 * len(rewards):
        warn(
            f"{what} are 0 in the first row of each episode and seldom elsewhere, as where a row holds the reward of "
            "the action before it: move them up by one row then"
        )
    if np.ptp(first) and (np.maximum.reduceat(rewards, starts) == np.minimum.reduceat(rewards, starts)).all():
        warn(
            f"{what} are the same in all rows of an episode, and others in other episodes, as where each row holds the "
            "episode's return: keep it in the last row then, and 0 in the others"
        )


def warn_of_dropped_rewards(rewards: np.ndarray, dropped: np.ndarray, where: str) -> None:
    """Warn if rows whose next state is unknown, (N,) bool, have far larger rewards than the others."""
    sizes = np.abs(rewards)
    if dropped.any() and not dropped.all() and sizes[dropped].mean() > _LARGE * sizes[~dropped].mean():
        warn(
            f"{where}: {list_rows(dropped, 'last steps')}, are dropped, since their next states are unknown, and with "
            "them rewards far larger than the others: add next states, or mark these rows as terminals if values end "
            "there"
        )


def find_unread(parts: Parts) -> list[str]:
    """Return the unread arrays that look like ends or numbers of episodes; warn of all that may be parts of the log."""
    read, shape = parts.arrays, shape_of(parts.arrays["states"])
    likely = {name: part for name, values in parts.others.items() if (part := _likely_part(name, values, shape))}
    following = [name for name, part in likely.items() if part == "next_states"]
    lengths = [name for name, part in likely.items() if part == "lengths"]
    unread = [name for name in likely if name not in (*following, *lengths)]
    is_marked = parts.mapped or not {*ENDS, "episodes"}.isdisjoint(read)
    ends = [name for name in unread if not is_marked or (not parts.mapped and _is_named(name))]
    if "episodes" in read:
        ends, lengths = [name for name in ends if likely[name] != "episodes"], []
    if {"first", "last"} <= read.keys():  # as in RLDS, whose discounts tell no more
        ends = [name for name in ends if "discount" not in name]
    if lengths:
        warn(
            f"{parts.where}: {list_names(lengths)}: lengths or bounds of episodes are not read: add an array 'episode' "
            "of each row's number, such as numpy.repeat(numpy.arange(len(lengths)), lengths)"
        )
    if following and "next_states" not in read:
        _warn(parts.where, following, "next_states", "next states")
    if ends:
        part = likely[ends[0]]
        zero = "; 0 marks ends there" if is_inverted(ends[0]) else ""
        zero += f" (columns={{'valid': {ends[0]!r}}} if 0 marks padding)" if "mask" in ends[0] else ""
        what = f"{'numbers' if part == 'episodes' else 'ends'} of episodes"
        _warn(parts.where, ends, part, what, f"{zero}; parts are {', '.join((*ENDS, 'episodes'))}")
    return unread


def _warn(where: str, names: list[str], part: str, what: str, more: str = "") -> None:
    listed = list_names([*map(repr, names)], 5)
    warn(f"{where}: not read, but looks like {what}: {listed}; if so, name the part, {advise(part, names[0])}{more}")


def _likely_part(name: str, values: Any, states: tuple[int, ...]) -> str:
    """Return the part that an array seems to be, by its name, shape and values; "lengths" of episodes; "" for none."""
    shape, word = shape_of(values), last_word(name)
    if _NEXT.fullmatch(words(name)) and shape == states:
        return "next_states"
    if len(shape) == 1 and 0 < shape[0] < states[0] and _LENGTH.fullmatch(word):
        return "lengths"
    size = states[0] * getattr(values, "dtype", np.dtype(float)).itemsize
    if shape not in (states[:1], (states[0], 1)) or size > _LARGEST_LOOK:
        return ""
    try:
        values = {*as_numbers(values).reshape(-1).tolist()}
    except (TypeError, ValueError, OSError, MemoryError):
        return ""
    if _is_id(name):
        return "episodes" if len(values) > 1 else ""
    if len(values) != 2 or not (values == {0, 1} or _is_named(name)):
        return ""
    if re.search(r"trunc|time_?out|limit", word):
        return "timeouts"
    return "first" if re.search(r"first|start", word) else "terminals"


def _is_named(name: str) -> bool:
    """Return whether the name of an array is one of ends of episodes, or numbers them."""
    return _END.search(words(name)) is not None or is_inverted(name) or _is_id(name)


def _is_id(name: str) -> bool:
    return part_of(last_word(name)) == "episodes" or _ID.fullmatch(last_word(name)) is not None
