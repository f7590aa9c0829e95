"""Parts of a log: one table of the names that their arrays have, each with one meaning; others are named by `columns`.

Nothing is inferred from the numbers in an array.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from ...runtime.arrays import as_numbers
from ...runtime.text import list_names, printable
from ..named_arrays import check_names, shape_of, side_by_side
from .parts import TABLES, Parts

ITEM = "episode_item"  # numbers the items of a list, or the groups of a file
NAMES = {  # used by D4RL, Minari, Gymnasium, Stable-Baselines3, d3rlpy, jaxrl, Tianshou, RLlib and data frames
    "states": "observations states obs observation state contexts context",
    "actions": "actions action act acts",
    "rewards": "rewards reward rew rews",
    "costs": "costs cost",  # rewards are their negative
    "next_states": "next_observations next_states next_obs next_observation next_state obs_next new_obs",
    "terminals": "terminals terminations terminated terminateds terminal is_terminal masks not_done not_dones",
    "truncations": "truncations truncated truncateds timeouts timeout",
    "dones": "dones done is_last dones_float episode_terminals",  # last row of an episode, for either reason
    "first": "is_first episode_starts",
    "episodes": "episode episodes episode_id episode_ids episode_index eps_id "
    f"traj trajectory traj_id trajectory_id trajectory_ids {ITEM}",
    # Rows of different ones do not follow each other.
    "agents": "agent agent_id player player_id robot robot_id environment environment_id env env_id run run_id seed",
    "steps": "step steps step_id timestep timesteps time_step frame_index t",  # count up by one in an episode
    "times": "timestamp timestamps time datetime date",  # increase in an episode
    "valid": "valid valids is_valid valid_mask attention_mask",  # 0 in rows that only pad episodes
    "log_probs": "infos/action_log_probs action_log_probs log_probs log_prob logprobs action_logp logp "
    "old_log_prob old_log_probs behavior_log_prob behavior_log_probs",
    "probabilities": "probabilities propensities propensity propensity_score pscore "
    "action_prob action_probs action_probability behavior_prob behaviour_prob",
}
KEYS = {part: tuple(names.split()) for part, names in NAMES.items()}
ENDS = ("terminals", "truncations", "dones", "first")
NEEDED = ("states", "actions", "rewards")
UNREAD = "unread"  # key of `columns` for arrays that are to be left out
LIMIT = "pass sopr_fast.load_log(…, max_episode_steps=…)"
_PARTS = {name: part for part, names in KEYS.items() for name in names}
_INVERTED = {"masks", "mask", "not_done", "not_dones", "nonterminals", "discount", "discounts", "continues"}
_OF_STATES = ("step_type", "discount", "discounts")  # of dm_env: a row may hold only a state, or what led to it
_OF_RLDS = ("is_first", "is_last", "is_terminal")  # of Dreamer too, if there are several
_IF_ONE_A_ROW = ("first", "episodes", "agents", "steps", "times", "valid")
_NUMBERED = re.compile(r"(.*[^0-9])([0-9]+)\]?", re.DOTALL)
Columns = Mapping[str, "str | Sequence[str]"]


def part_of(name: str) -> str:
    """Return the part of a log that a name means in any case, "" if it means none."""
    return _PARTS.get(words(name), "")


def words(name: str) -> str:
    """Return a name in lower case, with `_` between words, such as `episode_id` for "episodeId" or "Episode ID"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[ -]", "_", str(name).strip()).lower()


def numbered(name: str) -> tuple[str, int | None]:
    """Return the stem and the number of a name such as `obs_0`, `obs.0` or `obs[0]`; the name and None of others."""
    match = _NUMBERED.fullmatch(name)
    stem = match[1].rstrip("._ [") if match else ""
    return (stem, int(match[2])) if match and stem else (name, None)


def advise(part: str, *names: str) -> str:
    """Return how to say which arrays are a part of a log."""
    names = (*map(printable, names[:10]), *["…"] * (len(names) > 10))
    shown = [*names] if len(names) > 1 else repr(names[0]) if names else "…"
    return f"load_log(…, columns={{{part!r}: {shown}}})"


def missing(part: str, arrays: Mapping[str, Any]) -> ValueError:
    """Return the error of a log without a part, which names parts to join, if there are some."""
    if inner := [name for name in arrays if part in map(part_of, name.split("/")[:-1])]:  # such as `obs/position`
        return ValueError(f"the {part} have names: choose by {advise(part, *inner)}")
    if arrays and all(isinstance(x, Real) for x in arrays.values()):
        return ValueError("numbers by name, as returns are: policies come first, then the log, then returns")
    first, *others = KEYS[part]
    return ValueError(
        f"no array {first!r} (or {', '.join(others)}): name yours by {advise(part)}; the arrays there "
        f"are {list_names([*map(str, arrays)])}"
    )


def check_needed(parts: Iterable[str], arrays: Mapping[str, Any]) -> None:
    """Raise ValueError if states, actions, or rewards and costs, are not among the parts of a log with these arrays."""
    found = {*parts} | ({"rewards"} if "costs" in parts else set())
    if absent := [part for part in NEEDED if part not in found]:
        raise missing(absent[0], arrays)


def find_parts(arrays: Mapping[str, Any], columns: Columns | None, wanted: Sequence[str] = ()) -> Parts:
    """Find the parts of a log among named arrays: all, or the wanted ones. Raise ValueError if two arrays disagree."""
    own, arrays = {*arrays}, join_numbered(arrays)
    found = _named(arrays, columns or {})
    unread = {*found.pop(UNREAD, ())}
    found = {part: names for part, names in found.items() if unread.isdisjoint(names)}
    left_out = unread.union(*found.values())
    free = {name: x for name, x in arrays.items() if name not in left_out and numbered(name)[0] not in unread}
    if not wanted:
        _refuse_rows_of_states(free)
    meanings = {name: part_of(name) for name in free}
    values: dict[str, Any] = {}
    shapes: tuple[tuple[int, ...], ...] = ()  # of one value a row
    for part in wanted or KEYS:  # states first
        names = [name for name, meaning in meanings.items() if meaning == part]
        if part in _IF_ONE_A_ROW:
            names = [name for name in names if shape_of(arrays[name]) in shapes]
        if part not in found and names:
            found[part] = names if part == "agents" else [_one_of(names, part, [x for x in free if x in own])]
        if part == "agents" and part in found and "episodes" in found:  # rows of different ones are of other episodes
            part, found["episodes"] = "episodes", [*dict.fromkeys(found["episodes"] + found[part])]
        if part in found:
            values[part] = _joined(arrays, found[part], part)
        if part == "states" and (shape := shape_of(values.get(part))):
            shapes = (shape[:1], (shape[0], 1))
    for part, other in (("rewards", "costs"), ("log_probs", "probabilities")):
        if {part, other} <= values.keys():
            both = f"{found[part][0]!r} and {found[other][0]!r}"
            raise ValueError(f"both {both}, which say the same; leave one out by {advise(UNREAD, *found[other])}")
    used = {name for names in found.values() for name in names}
    rest = [name for name in free if name in own and not meanings[name] and numbered(name)[0] not in used]
    for part in wanted or TABLES:
        numbers = [name for name in rest if part_of(numbered(name)[0]) == part]
        if numbers and part not in values:
            raise ValueError(f"numbers of the columns of {part} leave some out: name all by {advise(part, *numbers)}")
    others = [name for name in rest if shape_of(arrays[name]) in shapes]
    return Parts(
        values,
        {part: ", ".join(names) for part, names in found.items() if part in values},
        f"; not read: {list_names(others)}" if others else "",
        frozenset(part for part in ENDS if part in found and words(found[part][0]).rpartition("/")[2] in _INVERTED),
    )


def join_numbered(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays, and those of one number each, such as `obs_0`, `obs_1`, together as `obs`.

    Numbers that leave some out are no order of columns: the user names these.
    """
    check_names(arrays)
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in arrays:
        stem, number = numbered(name)
        if number is not None and stem not in arrays:
            groups.setdefault(stem, []).append((number, name))
    joined = {}
    for stem, columns in groups.items():
        numbers, names = zip(*sorted(columns), strict=True)
        if [*numbers] in ([*range(len(names))], [*range(1, len(names) + 1)]):
            joined[stem] = side_by_side([arrays[name] for name in names])
    return {**arrays} | joined


def _named(arrays: Mapping[str, Any], columns: Columns) -> dict[str, list[str]]:
    """Return the names of arrays that `columns` give to parts; next states are those of `next_` and a state's name."""
    if not isinstance(columns, Mapping) or not all(columns.values()):
        raise TypeError(
            f"columns must map parts of the log to names, such as {{'states': ['x', 'v']}}, got {columns!r}"
        )
    chosen: dict[str, list[str]] = {}
    for key, names in columns.items():
        part = key if key in KEYS else part_of(key) or key  # any name of a part
        if part not in (*KEYS, UNREAD):
            raise ValueError(f"columns name the part {key!r}; a log's parts are {', '.join((*KEYS, UNREAD))}")
        if part in chosen:
            raise ValueError(f"both {names!r} and {', '.join(chosen[part])!r} are given as the {part}")
        chosen[part] = [names] if isinstance(names, str) else [*map(str, names)]
        if absent := [name for name in chosen[part] if name not in arrays]:
            raise ValueError(f"no column {absent[0]!r} for the {part}; it has {list_names([*arrays])}")
        if len(chosen[part]) > 1 and part not in (*TABLES, "episodes", "agents", UNREAD):
            raise ValueError(f"columns name several arrays for the {part}; name one")
    following = [f"next_{name}" for name in chosen.get("states", [])]
    if following and "next_states" not in chosen and all(name in arrays for name in following):
        chosen["next_states"] = following
    return chosen


def _joined(arrays: Mapping[str, Any], names: Sequence[str], part: str) -> Any:
    found = [arrays[name] for name in names]
    if part in ("episodes", "agents") and len(found) > 1:
        import pandas

        return pandas.MultiIndex.from_arrays([as_numbers(x).reshape(-1) for x in found]).factorize()[0]
    return found[0] if len(found) == 1 else side_by_side(found)


def _one_of(names: list[str], part: str, own: Sequence[str]) -> str:
    """Return the only name of a part; `own` are those of the user's arrays."""
    name, *others = sorted(names, key=lambda x: KEYS[part].index(words(x)))
    if others:
        raise ValueError(
            f"{name!r} and {others[0]!r} both mean the {part}; choose one by {advise(part, name)}, or leave the other "
            f"out by {advise(UNREAD, *others)}"
        )
    columns = [x for x in own if x != name and numbered(x)[0] == name]
    if columns and name in own and part in TABLES:
        raise ValueError(f"there are {name!r} and {columns[-1]!r}; choose by {advise(part, name, *columns)}")
    return name


def _refuse_rows_of_states(arrays: Mapping[str, Any]) -> None:
    """Raise ValueError for rows as of dm_env, RLDS and Dreamer, which may not hold a state and the action there."""
    marks = [name for name in arrays if words(name) in _OF_STATES]
    flags = {part_of(name): name for name in arrays if words(name) in _OF_RLDS}
    if marks or len(flags) > 1:
        columns = flags | ({UNREAD: marks} if marks else {})
        raise ValueError(
            f"rows with {list_names([*map(repr, [*marks, *flags.values()])])} are of dm_env, RLDS or Dreamer, and may "
            "hold only a state, or the action that led to it: make episodes by a recipe (docs/files.md, rows of other "
            f"libraries); if each holds a state and the action taken there, say so by columns={columns}"
        )
