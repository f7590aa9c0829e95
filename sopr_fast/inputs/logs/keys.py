"""Names of the arrays of a log, each with one meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.arrays import as_numbers, is_tensor
from ...runtime.text import NAME_WIDTH, join_some, printable
from ...runtime.warn import warn
from .arrays import Lazy, shape_of

# Names used by D4RL, Minari, Gymnasium, Stable-Baselines3, d3rlpy, jaxrl, Tianshou, RLlib and data frames.
KEYS = {
    "states": ("observations", "states", "obs", "observation", "state", "contexts", "context"),
    "actions": ("actions", "action", "act", "acts"),
    "rewards": ("rewards", "reward", "rew", "rews"),
    "next_states": (
        *("next_observations", "next_states", "next_obs", "next_observation", "next_state"),
        *("obs_next", "new_obs"),
    ),
    "terminals": (  # the environment ended after this row
        *("terminals", "terminations", "terminated", "terminateds", "terminal", "is_terminal"),
        *("masks", "not_done", "not_dones"),  # 0 where it ended
    ),
    "timeouts": ("timeouts", "truncations", "truncated", "truncateds", "timeout"),  # a limit cut the episode here
    "dones": ("dones", "done"),  # the environment ended, or a limit cut the episode
    "last": ("dones_float", "episode_terminals", "is_last"),  # last row of an episode, for either reason
    "first": ("is_first", "episode_starts"),  # first row of an episode
    "episodes": (
        *("episode", "episodes", "episode_id", "episode_ids", "episode_index", "eps_id"),
        *("traj", "trajectory", "traj_id", "trajectory_id", "trajectory_ids"),
    ),
    "steps": (
        *("step", "steps", "step_id", "timestep", "timesteps", "time_step", "frame_index", "t"),
        *("timestamp", "timestamps", "time", "datetime", "date"),
    ),
    "valid": ("valid", "is_valid", "valid_mask", "attention_mask"),  # 0 in rows that only pad episodes
    "log_probs": (
        *("infos/action_log_probs", "action_log_probs", "log_probs", "log_prob", "logprobs", "action_logp"),
        *("logp", "old_log_prob", "old_log_probs", "behavior_log_prob", "behavior_log_probs"),
    ),
    "probabilities": (
        *("probabilities", "propensities", "propensity", "propensity_score", "pscore"),
        *("action_prob", "action_probs", "action_probability", "behavior_prob", "behaviour_prob"),
    ),
}
TIMES = ("timestamp", "timestamps", "time", "datetime", "date")  # these order the rows of an episode, and tell no ends
ENDS = ("terminals", "timeouts", "dones", "last", "first")
NEEDED = ("states", "actions", "rewards")
OPTIONAL = ("actions", "rewards", "next_states", "terminals", "timeouts", "log_probs")
_PARTS = {name: part for part, names in KEYS.items() for name in names}
_SAME = {"dones": "terminals", "last": "terminals", "first": "terminals", "probabilities": "log_probs"}
_COLUMNS = ("last", "first", "episodes", "steps", "valid")  # such arrays count if they hold a number for each row
_INVERTED = re.compile(
    r"((not|non|un)_?(done|terminal|terminated)s?|masks?|discounts?|continu\w*|alive)"
)  # 0 marks ends
_END_WORDS = re.compile(
    r"(?<![a-z])(dones?|terminal\w*|terminat\w*|trunc\w*|time_?outs?|time_?limit\w*|ends?|ended|last|first|resets?|masks?|"
    r"absorb\w*|final|dead|died|death|over|stops?|crash\w*|fail\w*|starts?|discounts?|continu\w*|alive)(?![a-z])"
)
_ID_WORDS = re.compile(
    r"(\w+_|icustay|stay|patient|subject|session|user)(id|num|number|idx|index)s?|(patient|subject|stay|session|rollout)s?"
)
_BOUND_WORDS = re.compile(  # of arrays with one number for each episode
    r"((ep|episodes?|traj|trajectory|trajectories|rollouts?|path|seq|sequence|session)_)?(lens?|lengths?|ends?|starts?|indptr)"
)
NUMBERED = re.compile(r"(.+?)[._ ]?\[?(\d+)\]?")  # obs_0, obs.0, obs[0]
_GROUP = re.compile(r"[._ \[]\d+\]?$")  # number of a column of several
_FEW = 1000  # rows that are looked at first
_LARGEST_LOOK = 64 << 20  # bytes of an unread array that is looked into
Columns = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class Parts:
    """Arrays of a log by what they mean.

    Attributes:
        where: Beginning of messages, such as the file's path.
        arrays: Part of the log → its array, which may not be read yet.
        names: Part of the log → name of the array.
        unread: Names of arrays that look like ends of episodes and are not read.
        mapped: Whether the user mapped an array of ends.
    """

    where: str
    arrays: dict[str, Any]
    names: dict[str, str]
    unread: tuple[str, ...] = ()
    mapped: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts that the log lacks."""
        present = {_SAME.get(part, part) for part in self.arrays}
        return tuple(part for part in OPTIONAL if part not in present)


def find_parts(arrays: Mapping[str, Any], columns: Columns | None, where: str, wanted: Sequence[str] = ()) -> Parts:
    """Find the parts of a log among named arrays: all, or the wanted ones."""
    columns, chosen = columns or {}, dict[str, tuple[list[str], Any]]()
    for part, names in columns.items():
        if part not in KEYS:
            raise ValueError(f"columns name the part {part!r}; a log's parts are {', '.join(KEYS)}")
        found = [_find(name, part, arrays, where) for name in ([names] if isinstance(names, str) else names)]
        meaning = part_of(found[0].rpartition("/")[2])
        own = meaning if part == "terminals" and meaning in ENDS else part
        chosen[own] = found, _join([arrays[name] for name in found])
        following = [f"next_{name}" for name in found]
        if part == "states" and "next_states" not in columns and {*following} <= {*arrays}:
            chosen["next_states"] = following, _join([arrays[name] for name in following])
    mapped = {name for found, _ in chosen.values() for name in found}
    free = {name: values for name, values in arrays.items() if name not in mapped}
    silenced = ("terminals", "dones", "last", "first") if "terminals" in columns else ()
    count = -1
    for part in wanted or KEYS:
        if part not in chosen and part not in silenced and (name := _choose(part, free, where, count)):
            chosen[part] = [name], arrays[name]
        if part == "states" and part in chosen:
            count = next(iter(shape_of(chosen[part][1])), -1)
    _check_numbers(chosen, columns, arrays, where)
    used = mapped | {name for found, _ in chosen.values() for name in found}
    groups = {_GROUP.sub("", name) for name in used} | used  # obs_0, obs_1, … are read if obs is, and the reverse
    others = [] if wanted or count < 0 else [x for x in arrays if not {x, _GROUP.sub("", x)} & groups]
    bounds = {x: _numbers_of_episodes(x, arrays[x], count) for x in others if _is_bounds(x, arrays[x], count)}
    readable = next((name for name, numbers in bounds.items() if numbers is not None), None)
    if "episodes" not in chosen and readable is not None:
        chosen["episodes"] = [readable], bounds[readable]
    elif "episodes" not in chosen and bounds:
        warn(
            f"{where}: {list_names([*bounds])}: these lengths or bounds of episodes do not fit {count:,} rows and are "
            "not read: add an array 'episode' of the number of each row's episode"
        )
    return Parts(
        where,
        {part: values for part, (_, values) in chosen.items()},
        {part: ", ".join(found) for part, (found, _) in chosen.items()},
        tuple(name for name in others if _looks_like_ends(name, arrays[name], count)),
        not {*ENDS}.isdisjoint(columns),
    )


def part_of(name: str) -> str:
    """Return the part of a log that a name means in any case, "" if it means none."""
    return _PARTS.get(_words(name), "")


def missing(part: str, arrays: Mapping[str, Any], where: str | Path) -> ValueError:
    """Return the error of a log without a part, which names parts to join, if there are some."""
    present = [str(name) for name in arrays]
    if inner := nested(part, arrays):
        listed = ", ".join(repr(printable(name, NAME_WIDTH)) for name in inner[:10])
        return ValueError(f"{where}: the {part} have names: choose by columns={{{part!r}: [{listed}]}}")
    first, *others = KEYS[part]
    likewise = "; name actions, rewards, episodes and steps likewise" if part == "states" else ""
    return ValueError(
        f"{where}: no array {first!r} (or {', '.join(others)}): name yours by sopr_fast.load_log(…, "
        f"columns={{{part!r}: …}}) (--columns {part}=…); the arrays there are {list_names(present)}{likewise}"
    )


def nested(part: str, arrays: Mapping[str, Any]) -> list[str]:
    """Return the names of arrays in groups of a part's name, such as `obs/position`."""
    return [str(name) for name in arrays if part in map(part_of, str(name).split("/")[:-1])]


def check_is_policy(names: Iterable[str], parts: Iterable[str] = (*NEEDED, "next_states", *ENDS)) -> None:
    """Raise ValueError if one of the names of a file's arrays is that of a part of a log, which policies lack."""
    for name in names:
        if part_of(name) in (*parts,):
            raise ValueError(
                f"a log (it holds {name!r}), not a policy: move it out of the folder of policies, or name the files"
            )


def list_names(names: list[str]) -> str:
    """Return the first ten names, escaped, and how many follow, for messages."""
    return join_some([printable(name, NAME_WIDTH) for name in names], 10) or "none"


def _find(name: str, part: str, arrays: Mapping[str, Any], where: str) -> str:
    """Return the array of a name, which may leave out the groups that it lies in."""
    if name in arrays:
        return name
    ends = [key for key in arrays if key.endswith(f"/{name}") and (part != "states" or not key.startswith("next_"))]
    if len(ends) != 1:
        listed = list_names(ends or [str(key) for key in arrays])
        raise ValueError(f"{where}: no column {name!r} for the {part}; it has {listed}")
    return ends[0]


def _choose(part: str, arrays: Mapping[str, Any], where: str, count: int) -> str:
    """Return the name of the array of a part, "" without one."""
    names = sorted((name for name in arrays if part_of(name) == part), key=lambda x: KEYS[part].index(_words(x)))
    if part in _COLUMNS:
        names = [name for name in names if _is_column(arrays[name], count)]
    if part == "steps":
        names = [name for name in names if _words(name) not in TIMES] or names[:1]
    for other in names[1:]:
        first, second = (as_numbers(arrays[name]).reshape(-1) for name in (names[0], other))
        if is_inverted(names[0]) != is_inverted(other):
            second = 1 - second
        if not np.array_equal(first, second):
            raise ValueError(
                f"{where}: {names[0]!r} and {other!r} both mean the {part} and disagree; choose one by "
                f"columns={{{part!r}: {names[0]!r}}}"
            )
    if part != "states" or not names:
        return names[0] if names else ""
    if inner := nested("states", arrays):
        raise ValueError(
            f"{where}: {names[0]!r} may be the states, and so may named ones: choose by columns={{'states': "
            f"{names[0]!r}}} or columns={{'states': [{list_names([*map(repr, inner)])}]}}"
        )
    if not shape_of(arrays[names[0]]):
        if isinstance(arrays[names[0]], list):
            raise ValueError(
                f"{where}: {names[0]!r} holds arrays of other lengths each; pass a list of dictionaries, one for each "
                "episode"
            )
        np.asarray(arrays[names[0]])  # raises if the array cannot be read
        raise ValueError(f"{where}: {names[0]!r} must have shape (rows, columns), got ()")
    return names[0]


def _check_numbers(
    chosen: Mapping[str, tuple[list[str], Any]], columns: Columns, arrays: Mapping[str, Any], where: str
) -> None:
    """Raise if numbered columns, such as `obs_0` and `obs_2`, lack one, or there is a column without a number too."""
    numbers = {}
    for part in ("states", "next_states", "actions"):
        name = chosen[part][0][0] if part in chosen else ""
        matches = ((other, NUMBERED.fullmatch(other)) for other in arrays)
        named = {int(match[2]): other for other, match in matches if match and match[1] == name}
        if not named:
            continue
        numbers[part] = sorted(named)
        last = named[numbers[part][-1]]
        advice = f"name those of the {part} by columns={{{part!r}: [{list_names([*map(repr, named.values())])}]}}"
        absent = {*range(min(1, *named), len(named))} - {*named}
        if shape_of(arrays[name])[1:] != (len(named),):
            if part not in columns:
                raise ValueError(f"{where}: there are {name!r} and {last!r}; {advice}")
        elif absent:
            lacking = re.sub(r"\d+(?=\]?$)", str(min(absent)), last)
            raise ValueError(f"{where}: {last!r} is there, but not {lacking!r}; add it, or {advice}")
    if "next_states" in numbers and numbers["next_states"] != numbers.get("states", numbers["next_states"]):
        names, following = (chosen[part][0][0] for part in ("states", "next_states"))
        raise ValueError(f"{where}: columns {names!r} and {following!r} have other numbers; rename them")


def _join(arrays: list[Any]) -> Any:
    """Return arrays next to each other, read when they are needed."""
    if len(arrays) == 1:
        return arrays[0]
    width = sum(int(np.prod(shape_of(values)[1:])) for values in arrays)
    dtype = np.result_type(*(getattr(values, "dtype", np.float64) for values in arrays if not is_tensor(values)))
    read = lambda: np.column_stack([(x := as_numbers(values)).reshape(len(x), -1) for values in arrays])  # noqa: E731
    return Lazy((shape_of(arrays[0])[0], width), dtype, read)


def _is_column(values: Any, count: int) -> bool:
    return shape_of(values) in ((count,), (count, 1))


def _is_bounds(name: str, values: Any, count: int) -> bool:
    """Return whether an array may hold the lengths, first rows or ends of episodes, by its name and shape."""
    shape = shape_of(values)
    return len(shape) == 1 and 0 < shape[0] < count and _BOUND_WORDS.fullmatch(_last_word(name)) is not None


def _numbers_of_episodes(name: str, values: Any, count: int) -> np.ndarray | None:
    """Return the number of each row's episode, from the lengths, first rows or ends of episodes; None if they fit none.

    Ends are last rows, or the rows after them.
    """
    values = as_numbers(values)
    ascends = bool((np.diff(values) > 0).all())
    if values.sum() == count and (values > 0).all():
        lengths = values
    elif ascends and values[-1] == count:
        lengths = np.diff(values, prepend=0)
    elif ascends and values[-1] == count - 1 and "start" not in name:
        lengths = np.diff(values, prepend=-1)
    elif ascends and values[0] == 0 and values[-1] < count:
        lengths = np.diff(values, append=count)
    else:
        return None
    return np.repeat(np.arange(len(lengths)), lengths.astype(np.int64))


def _looks_like_ends(name: str, values: Any, count: int) -> bool:
    """Return whether an unread array looks like ends of episodes: by two values, or by a name of episodes' numbers."""
    if not _is_column(values, count) or count * getattr(values, "dtype", np.dtype(float)).itemsize > _LARGEST_LOOK:
        return False
    try:
        read = as_numbers(values).reshape(-1)
        if likely_part(name) == "episodes":
            return bool((read != read[0]).any())
        two = len({*read[:_FEW].tolist()}) <= 2 and len({*read.tolist()}) == 2
    except (TypeError, ValueError, OSError, MemoryError):
        return False
    return two and (named_like_ends(name) or (read.dtype.kind in "fiub" and bool(((read == 0) | (read == 1)).all())))


def named_like_ends(name: str) -> bool:
    """Return whether the name of an array is one of ends of episodes, or numbers them."""
    words = _words(name)
    return _END_WORDS.search(words) is not None or is_inverted(name) or likely_part(name) == "episodes"


def is_inverted(name: str) -> bool:
    """Return whether an array of this name marks with 0 what others mark with 1."""
    return _INVERTED.fullmatch(_last_word(name)) is not None


def likely_part(name: str) -> str:
    """Return the most likely part of an array of ends, by its name."""
    word = _last_word(name)
    if part_of(word) == "episodes" or _ID_WORDS.fullmatch(word):
        return "episodes"
    if re.search(r"trunc|time_?out|limit", word):
        return "timeouts"
    return "first" if re.search(r"first|start", word) else "terminals"


def _last_word(name: str) -> str:
    return _words(name).rpartition("/")[2]


def _words(name: str) -> str:
    """Return a name in lower case, with `_` between words, such as `episode_id` for "episodeId" or "Episode ID"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[ -]+", "_", str(name).strip()).lower()
