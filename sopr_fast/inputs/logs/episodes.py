"""Ends of episodes: the one place that decides, and describes its decision."""

from __future__ import annotations

import numpy as np

from ...runtime.text import list_names
from ...runtime.warn import warn
from .episode_warnings import SHUFFLED, find_unread, number_rows, question_flags, warn_of_ends
from .keys import ENDS, ENVIRONMENT, advise
from .transitions import NEARLY_ALL, Ends, LoggedRows, are_discrete, counts_up, scaled_distance

_SAMPLED = 65536  # rows
_SHORTEST_LIMIT = 20  # steps: ends at fewer are those of a task with as many steps
_COUNTED = 4096  # rows whose states are counted
_USUAL = 0.99  # share of steps that are no longer than what counts as usual
_BANDIT = 0.9  # share of terminal rows beyond which a log is taken as one of one-step episodes


def decide(log: LoggedRows, limit: int | None) -> Ends:
    """Return where episodes end, by flags, numbers of episodes and steps, next states, and a time limit in steps."""
    none = np.zeros(len(log["states"]), bool)
    if "next_states" in log:
        log.linked = (log["next_states"][:-1] == log["states"][1:]).all(1)
    if limit == 1:
        return Ends(~none, none, none, [], False, ["max_episode_steps=1"])
    question_flags(log)
    if "episodes" in log and (number_rows(log) or (log["episodes"].max() == 0 and log.marked()[:-1].any())):
        del log["episodes"]  # it is a number of the row, or the same in all rows
    ends = _find_ends(log)
    if {*ends.deciders} <= {"terminals", "timeouts"}:
        ends.inside |= _goes_on(log, ends)
    elif log.linked is not None:
        ends.inside[:-1] &= log.linked  # numbers may be those of several episodes, as of one environment
    ends.inside &= ~log.get("reset", none) & (log.names.get("episodes") != ENVIRONMENT)
    warn_of_ends(log, ends, limit)
    if log.linked is not None:
        _cut_at_jumps(log, ends, np.append(~log.linked, False), limit)
    if limit is not None:
        last = ends.last
        longest = int(np.diff(np.flatnonzero(last), prepend=-1).max(initial=0))
        if longest > limit and ends.closes.any() and {"timeouts", "episodes"} & {*ends.deciders}:
            warn(
                f"{log.where}: max_episode_steps={limit} cuts episodes, the longest of which has {longest:,} steps by "
                f"{_list_deciders(log, ends)}; pass the time limit of the environment, or leave it out"
            )
        starts = np.concatenate([[0], np.flatnonzero(last[:-1]) + 1])
        steps = np.arange(len(last)) - np.repeat(starts, np.diff(starts, append=len(last)))
        reached = steps % limit == limit - 1
        if ends.mixed:
            ends.terminals &= ~reached
        ends.timeouts |= reached & ~ends.terminals
        ends.words.append(f"max_episode_steps={limit}")
    ends.unread = find_unread(log.parts)
    return ends


def _find_ends(log: LoggedRows) -> Ends:
    """Return the ends by flags, numbers of episodes and steps, each by its meaning."""
    names, none = log.names, np.zeros(len(log["states"]), bool)
    terminals, timeouts, dones = log.get("terminals"), log.get("timeouts", none), log.get("dones")
    last = {"last": log["last"]} if "last" in log else {}  # part → last rows of episodes
    if "first" in log:
        last["first"] = np.append(log["first"][1:], True)
    if "episodes" in log:
        last["episodes"] = np.append(np.diff(log["episodes"]) != 0, True)
    elif "steps" in log and not last and counts_up(log["steps"]) and (np.diff(log["steps"]) <= 0).any():
        last["steps"] = np.append(np.diff(log["steps"]) <= 0, True)
    ended = np.any([none, *last.values()], axis=0)
    ended[-1] = bool(last)
    deciders = [part for part in ("terminals", "dones", "timeouts") if part in log] + [*last]
    deciders += ["steps"] if {"episodes", "steps"} <= log.keys() else []
    closes = timeouts | ended | (none if dones is None else dones)
    if terminals is not None and dones is not None and (terminals & ~dones).any():
        raise ValueError(
            f"{log.where}: {names['terminals']!r} mark {np.count_nonzero(terminals & ~dones):,} ends that "
            f"{names['dones']!r} do not; choose one by {advise('terminals', names['terminals'])}"
        )
    if terminals is not None:
        if timeouts.sum() > 1 and terminals[timeouts].all() and terminals.mean() <= _BANDIT:
            warn(
                f"{log.where}: {names['terminals']!r} mark all {timeouts.sum():,} rows of {names['timeouts']!r} too, "
                "as 'dones' do: these rows are taken as timeouts; leave 'timeouts' out if the environment ended there"
            )
            terminals = terminals & ~timeouts
        inside = terminals & ~closes if last or dones is not None else none
        inside[-1] = False
        tells_cuts = "timeouts" in log or (dones is not None and bool((dones & ~terminals).any()))
        mixed = not tells_cuts and _end_at_limit(terminals, closes)
        return Ends(terminals, closes, inside, deciders, mixed, [])
    marked = ended if dones is None else dones
    if dones is None and (not last or ("next_states" in log and not {"last", "first"} & {*last})):
        return Ends(none, closes, none.copy(), deciders, False, [])
    has_both = "timeouts" in log or (dones is not None and bool((ended & ~dones)[:-1].any()))
    return Ends(marked & ~timeouts, closes, none, deciders, not has_both, [])


def _goes_on(log: LoggedRows, ends: Ends) -> np.ndarray:
    """Return (N,) bool: terminal rows that lead on to the next row, as where a trajectory goes on beyond its goal.

    The next state, if it is known, is the state of the next row, and the step there is no longer than usual steps are;
    an environment that was reset is farther away. If usual steps are as long as the way between any two states, only
    terminal rows in a row count. A step between discrete states has no length, but is also taken elsewhere, and does
    not lead to the first state of the log.
    """
    states, terminals, found = log["states"], ends.terminals, np.zeros(len(log["states"]), bool)
    candidates = terminals & ~ends.closes
    candidates[-1] = False
    rows = np.flatnonzero(candidates)
    if log.linked is not None:
        rows = rows[log.linked[rows]]
    plain = np.flatnonzero(~(terminals | ends.closes)[:-1])
    random = np.random.default_rng(0)
    plain = plain if len(plain) <= _SAMPLED else np.sort(random.choice(plain, _SAMPLED, replace=False))
    if not len(rows) or not len(plain) or terminals.mean() > _BANDIT:
        return found
    anywhere = random.permutation(plain)
    if is_discrete := are_discrete(states[plain[:_COUNTED]]):
        seen = {step.tobytes() for step in np.hstack([states[plain], states[plain + 1]])}

        def is_step(first: np.ndarray, second: np.ndarray) -> np.ndarray:
            return np.array([step.tobytes() in seen for step in np.hstack([states[first], states[second]])], bool)

        tells = is_step(plain, anywhere).mean() < 0.5
        near = is_step(rows, rows + 1) & (states[rows + 1] != states[0]).any(1)
    else:
        distance = scaled_distance(states[plain])
        usual = np.quantile(distance(states[plain], states[plain + 1]), [0.5, _USUAL])
        apart = np.median(distance(states[plain], states[anywhere]))
        tells = usual[0] < apart / 2
        near = distance(states[rows], states[rows + 1]) <= min(2 * usual[1], apart / 2)
    if tells:
        rows, share = rows[near], 0.5 if is_discrete or log.linked is None else 0.0
    else:
        rows = rows[terminals[rows + 1] | terminals[rows - 1]]
        share = 1 - 0.5 * (1 - terminals.mean()) ** 2  # well beyond the share by chance, as among short episodes
    if len(rows) > share * candidates.sum():  # else an episode began where the one before ended by chance
        found[rows] = True
    return found


def _end_at_limit(terminals: np.ndarray, closes: np.ndarray) -> bool:
    """Return whether several of the terminal rows are the last ones of episodes of the greatest length."""
    ends = np.flatnonzero(terminals | closes)
    lengths = np.diff(ends, prepend=-1)[terminals[ends]]
    longest = lengths.max(initial=0)
    return bool(longest >= _SHORTEST_LIMIT and (lengths == longest).sum() >= max(3, 0.1 * len(lengths)))


def _cut_at_jumps(log: LoggedRows, ends: Ends, jumps: np.ndarray, limit: int | None) -> None:
    """Add timeouts at jumps (N,) bool, rows whose next state is not the state of the next row."""
    where, names = log.where, log.names
    alive = ~(ends.terminals | ends.timeouts)[:-1]
    unmarked = np.flatnonzero(jumps[:-1] & alive)
    if len(unmarked) > alive.sum() / 2:
        is_same = (log["next_states"] == log["states"]).all(1)[unmarked].mean() > NEARLY_ALL
        where += f": after most steps, {names['next_states']!r} are not the {names['states']!r} of the next row"
        reason = (
            ", so that rows do not follow each other, as in a shuffled log or one of several environments in turn; "
            f"initial states, episodes' returns and importance weights are wrong then: {SHUFFLED}"
        )
        if is_same or {"episodes", "steps"} <= log.keys():
            reason = f"{', but those of the same row' if is_same else ''}: leave them out if they are no next states"
        warn(where + reason)
    elif ends.timeouts.any() and len(unmarked):
        warn(
            f"{where}: after {len(unmarked):,} rows, such as row {unmarked[0]}, the next row does not follow, though "
            "nothing marks an end there: these rows are taken as timeouts; mark them if that is right"
        )
        ends.timeouts[unmarked] = True
    if not ends.timeouts.any():
        jumps[-1] = True
        ends.timeouts = ~ends.terminals & jumps
        ends.words += [f"jumps of {names['next_states']!r}"] * bool(ends.timeouts[:-1].any())
    if not {*ENDS} & {*log.parts.arrays} and limit is None and not ends.terminals.any():
        warn(f"{where}: nothing marks terminal states, so that all episodes count as cut; name them 'terminals'")


def follow(log: LoggedRows, ends: Ends) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps to drop, (N,) bool, whose next states are unknown, and the next states (N, dim_s).

    Without next states they are the states of the next rows, and a terminal step's own state. As in d4rl's
    `qlearning_dataset`, the last step of an episode that was cut is dropped.
    """
    states, timeouts = log["states"], ends.timeouts
    if log.linked is None:
        dropped = timeouts.copy()
        dropped[-1] |= not ends.terminals[-1]
        rows = np.arange(len(states))
        return dropped, states[np.where(ends.terminals & ~ends.inside, rows, np.minimum(rows + 1, len(states) - 1))]
    following, dropped, cut = log["next_states"], log["unknown"] & ~ends.terminals, timeouts[:-1]
    resets = cut & log.linked & (following != states).any(1)[:-1]
    if resets.sum() > cut.sum() / 2:
        warn(
            f"{log.where}: at {resets.sum():,} of {cut.sum():,} time limits, the next state is the first state of the "
            "next episode, as environments that reset themselves return it; these steps are dropped: replace it by the "
            "episode's last state, or leave out the time limits if the environment went on"
        )
        dropped |= np.append(resets, timeouts[-1])
    return dropped, following


def _list_deciders(log: LoggedRows, ends: Ends) -> str:
    """Return what decided, in words."""
    names = dict.fromkeys(repr(log.names[part]) for part in ends.deciders)
    return " and ".join([*names, *ends.words]) or "no array"


def verdict(log: LoggedRows, ends: Ends, kept: np.ndarray, episodes: np.ndarray) -> str:
    """Return how many episodes (E + 1,) of the rows that were kept (K,) there are, how they end and what decided."""
    count, lengths = len(episodes) - 1, np.diff(episodes)
    ended = int(ends.terminals[kept[episodes[1:] - 1]].sum())
    low, high = int(lengths.min()), int(lengths.max())
    steps = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    words = f"episodes: {count:,} of {steps} steps; {ended:,} end in a terminal state, {count - ended:,} are cut"
    if inside := int(ends.inside[kept].sum()):
        words += f"; they go on after {inside:,} terminal rows"
    words += f"; decided by {_list_deciders(log, ends)}"
    if ends.unread:
        words += f"; not read, but like ends or numbers of episodes: {list_names(ends.unread)}"
    return words
