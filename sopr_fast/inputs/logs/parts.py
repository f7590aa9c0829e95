"""Parts of a log: found among named arrays, checked, and in the form that `Transitions` have."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...runtime.arrays import as_numbers
from ...runtime.rows import FileRows
from ...runtime.text import NAME_WIDTH, list_names, printable
from ...runtime.warn import warn
from . import keys
from .arrays import Lazy, column_of, shape_of, side_by_side, spread_rows, table_shape, warn_of_marks, warn_of_rounding

_NUMBER = re.compile(r"[-+]?[\d.]+(?:[eE][-+]?\d+)?")
_CELL = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?")  # of a number, perhaps with a comma
_PROBABILITY = re.compile(r".*(prob(s|abilit\w*)?(?![a-z])|propens|p_?score|log_?(p|pi|mu)(?![a-z])).*|pi_b")
_PIECE = 4096  # rows that are checked together
_ROUNDING = 1e-4  # of log-probabilities
_COLUMNS = ("last", "first", "episodes", "steps", "valid")  # such arrays count if they hold a number for each row
_TABLES = ("states", "actions", "next_states")
_DICTIONARIES = (
    "; pass a list of dictionaries, one for each episode or step: of tuples, [dict(zip(('state', 'action', …), step)) "
    "for step in log]; of a dictionary of lists, [dict(zip(log, one)) for one in zip(*log.values())]; of arrays of all "
    "rows, one dictionary, dict(zip(('state', 'action', …), log))"
)
STORED = (Lazy, FileRows)  # arrays that are read when they are needed, into memory of their own
Columns = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class Parts:
    """Arrays of a log by what they mean."""

    where: str  # beginning of messages, such as the file's path
    arrays: dict[str, Any]  # part of the log → its array, which may not be read yet
    names: dict[str, str]  # part of the log → name of the array
    others: dict[str, Any]  # name → array that is not read
    mapped: bool  # whether the user mapped an array of ends

    @cached_property
    def count(self) -> int | None:
        """Rows of the log; None if the states have no shape, which reading them refuses."""
        return next(iter(shape_of(self.arrays["states"])), None)

    @property
    def columns(self) -> str:
        """Names of the arrays that the states consist of, "" if it is one."""
        return self.names["states"] if ", " in self.names["states"] else ""

    def read(self, part: str) -> np.ndarray:
        """Return the checked values of a part, in memory of their own.

        States, next states and actions are (rows, columns) float32, one number for each row is one column; flags are
        (rows,) bool, numbers of episodes (rows,) int64 in the order of their first rows, steps or times (rows,)
        float64, others (rows,) float32. Rows of next states may be NaN.
        """
        values = self.numbers(part)
        if part in _TABLES:
            values = values[:, None] if values.ndim == 1 else values
            what = f"{self._name(part)} must have shape (rows, columns)"
            shape = table_shape(values.shape, what)
            if 0 in shape:
                raise ValueError(f"{what}, got {values.shape}")
            return self._finite(part, values.reshape(shape))
        if values.shape not in ((len(values),), (len(values), 1)):
            hint = f"; choose one, such as by {keys.advise(part, f'{self.names[part]}_0')}"
            hint = "; pass only that of the logged action" if part == "probabilities" else hint * (values.ndim == 2)
            raise ValueError(f"{self._name(part)} must have shape (rows,), got {values.shape}{hint}")
        values = values.reshape(-1)
        if part == "episodes":
            import pandas

            if wrong := [x for x in values.tolist() if isinstance(x, dict | list)][:1]:
                raise TypeError(f"{self._name(part)} hold a {type(wrong[0]).__name__}, expected numbers or names")
            numbers, _ = pandas.factorize(values)
            if (numbers < 0).any():
                raise ValueError(f"{self._name(part)} has no value at row {int(np.argmax(numbers < 0))}: fill it")
            return numbers
        if part not in (*keys.ENDS, "valid"):
            return self._finite(part, values)
        if "discount" not in self.names[part].lower():  # which may be 0.99
            self._refuse(part, values, (values != 0) & (values != 1), "must be 0 or 1", "; write values == …")
        return (values == 0) if part != "valid" and keys.is_inverted(self.names[part]) else values.astype(bool)

    def log_probs(self, columns: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Return (rows,) log-probabilities of actions, from probabilities too, of parts as read; None without both."""
        indices, names = _are_indices(columns["actions"]), self.names
        values, logs = columns.get("probabilities"), columns.get("log_probs")
        if values is not None:
            what = f"must be {'from above 0 to 1' if indices else 'above 0'}"
            remedy = f"; pass logarithms as {keys.advise('log_probs', names['probabilities'])}"
            remedy = remedy if (values < 0).any() else "; correct such rows, or leave them out"
            wrong = (values <= 0) | ((values > 1 + _ROUNDING) & indices)
            self._refuse("probabilities", values, wrong, what, remedy)
        elif logs is None:
            for name in filter(_PROBABILITY.fullmatch, map(keys.last_word, self.others)):
                part = "log_probs" if re.search("log_?[pm]", name) else "probabilities"
                what = f"{name!r} is not read: if it holds {part} of the logged actions"
                warn(f"{self.where}: {what}, pass {keys.advise(part, name)}")
        if logs is not None:
            remedy = f", as logarithms are; pass probabilities as {keys.advise('probabilities', names['log_probs'])}"
            what = "of discrete actions must be at most 0"
            self._refuse("log_probs", logs, (logs > _ROUNDING) & indices, what, remedy)
        if logs is None or values is None:
            return logs if values is None else np.log(values)
        if not np.allclose(np.exp(logs), values, rtol=1e-3, atol=1e-6):
            raise ValueError(
                f"{self.where}: {names['probabilities']!r} and {names['log_probs']!r} disagree; choose one by "
                f"{keys.advise('log_probs', names['log_probs'])}"
            )
        return logs

    def _name(self, part: str) -> str:
        return f"{self.where}: {self.names[part]!r}"

    def _refuse(self, part: str, values: np.ndarray, wrong: np.ndarray, what: str, remedy: str = "") -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"{self._name(part)} {what}, got {values[row]:g} at row {row}{remedy}")

    def numbers(self, part: str) -> np.ndarray:
        """Return the values of an array, which must be numbers, or labels of episodes, for each row."""
        try:
            values = as_numbers(self.arrays[part])
        except (OverflowError, RuntimeError, TypeError, ValueError) as error:
            if str(error).startswith(self.where):
                raise
            raise ValueError(f"{self._name(part)} is no array: {error}{_DICTIONARIES}") from error
        if values.dtype.kind in "OSU" and part != "episodes":
            with contextlib.suppress(OverflowError, TypeError, ValueError):  # numbers, or arrays of equal length
                values = np.array(values.tolist(), np.float64)
        if part == "steps" and values.size and isinstance(values.flat[0], str | datetime.date | np.datetime64):
            import pandas

            times = pandas.to_datetime(values.reshape(-1), errors="coerce", format="ISO8601", utc=True)
            values = np.where(times.isna(), np.nan, times.asi8)
        if values.dtype.kind == "m":
            values = values / np.timedelta64(1, "s")
        if values.dtype.kind not in "fiub" and part != "episodes":
            raise TypeError(f"{self._name(part)} must be numbers, got dtype {values.dtype}{self._advice(part, values)}")
        if values.ndim == 0 or len(values) == 0:
            raise ValueError(f"{self._name(part)} is empty: shape {values.shape}")
        if self.count not in (None, len(values)):
            raise ValueError(
                f"{self._name(part)} has {len(values)} rows, {self.names['states']!r} has {self.count}; pass a list of "
                "dictionaries, one for each episode, if states hold the last ones of episodes too"
            )
        return values

    def _advice(self, part: str, values: np.ndarray) -> str:
        """Return what to do with values that are no numbers."""
        if values.dtype.names:
            return "; pass {name: x[name] for name in x.dtype.names}"
        words = (i for i, x in enumerate(values.flat) if isinstance(x, str) and not _NUMBER.fullmatch(x))
        if (place := next(words, None)) is None:
            return _DICTIONARIES if values.dtype == object else ""
        word, (row, column) = printable(values.flat[place], NAME_WIDTH), divmod(place, values.size // len(values))
        if any(isinstance(x, str) and _CELL.fullmatch(x) for x in values.reshape(len(values), -1)[:, column]):
            return f": {word!r} at row {row} is among numbers: write a number, or leave the row out"
        if part != "actions":
            what = "1 where episodes end, 0 elsewhere" if part in keys.ENDS else "numbers"
            return f": write {what}, such as by table[name].map({{{word!r}: …, …}})"
        return f": number the words, actions as the policies do, such as by table[name].map({{{word!r}: 0, …}})"

    def _finite(self, part: str, exact: np.ndarray) -> np.ndarray:
        dtype, remedy = np.float64 if part == "steps" else np.float32, ""
        with np.errstate(over="ignore"):
            values = np.array(exact, dtype, order="C", copy=None if isinstance(self.arrays[part], STORED) else True)
        for start in range(0, len(values), _PIECE):
            piece = values[start : start + _PIECE]
            finite = np.isfinite(piece).reshape(len(piece), -1).all(1)
            if part == "next_states":
                finite |= np.isnan(piece).all(1)
            if not finite.all():
                row = start + int(np.argmin(finite))
                what = "not finite (as float32)"
                if part == "steps":
                    what, remedy = "no number or ISO date", "; make dates of other forms by pandas.to_datetime"
                if part in ("actions", "rewards"):
                    remedy = (
                        "; if rows of RLDS hold only last states, fill it there and add columns is_first and is_last"
                    )
                raise ValueError(f"{self._name(part)} is {what} at row {row}: fill it, or leave the row out{remedy}")
        if part in ("states", "actions"):
            warn_of_marks(values, self._name(part))
        if part == "states":
            warn_of_rounding(values, lambda some: exact[some], exact.dtype, f"{self.where}: ")
        return values


def _are_indices(actions: np.ndarray) -> bool:
    """Return whether actions are discrete: one-hot, or one column of whole numbers, judged by a sample."""
    few = actions[spread_rows(len(actions))]
    if few.shape[1] == 1:
        return bool((few == np.abs(np.round(few))).all() and few.any())
    return bool(((few == 0) | (few == 1)).all() and (few.sum(1) == 1).all())


def find_parts(arrays: Mapping[str, Any], columns: Columns | None, where: str, wanted: Sequence[str] = ()) -> Parts:
    """Find the parts of a log among named arrays: all, or the wanted ones."""
    columns, chosen = columns or {}, dict[str, tuple[list[str], Any]]()
    if not wanted and (kinds := next((name for name in arrays if keys.words(name) == "step_type"), None)):
        chosen |= {part: ([kinds], as_numbers(arrays[kinds]) == kind) for part, kind in keys.STEP_TYPES.items()}
    if not isinstance(columns, Mapping) or not all(columns.values()):
        raise TypeError(
            f"columns must map parts of the log to names, such as {{'states': ['x', 'v']}}, got {columns!r}"
        )
    for part, names in columns.items():
        if part not in keys.KEYS:
            raise ValueError(f"columns name the part {part!r}; a log's parts are {', '.join(keys.KEYS)}")
        found = [_find(str(name), part, arrays, where) for name in ([names] if isinstance(names, str) else names)]
        meaning = keys.part_of(found[0].rpartition("/")[2])
        own = meaning if part == "terminals" and meaning in keys.ENDS else part
        chosen[own] = found, _joined(arrays, found)
        following = [f"next_{name}" for name in found]
        is_known = part == "states" and all(_array(name, arrays) is not None for name in following)
        if is_known and "next_states" not in columns:
            joined = _joined(arrays, following)
            if shape_of(joined) == shape_of(chosen[own][1]):
                chosen["next_states"] = following, joined
    mapped = {name for found, _ in chosen.values() for name in found}
    free = {name: values for name, values in arrays.items() if name not in mapped}
    silenced = {"terminals", "dones", "last", "first"} if "terminals" in columns else set[str]()
    silenced |= {"log_probs", "probabilities"} if {"log_probs", "probabilities"} & {*columns} else set()
    count = -1
    for part in wanted or keys.KEYS:
        if part not in chosen and part not in silenced and (name := _choose(part, free, where, count)):
            chosen[part] = [name], arrays[name]
        if part == "states" and part in chosen:
            count = next(iter(shape_of(chosen[part][1])), -1)
    used = mapped | {name for found, _ in chosen.values() for name in found}
    groups = {keys.GROUP.sub("", name) for name in used} | used  # obs_0, obs_1, … are read if obs is, and the reverse
    others = {name: x for name, x in arrays.items() if not {name, keys.GROUP.sub("", name)} & groups}
    return Parts(
        where,
        {part: values for part, (_, values) in chosen.items()},
        {part: ", ".join(found) for part, (found, _) in chosen.items()},
        others,
        not {*keys.ENDS}.isdisjoint(columns),
    )


def _joined(arrays: Mapping[str, Any], names: Sequence[str]) -> Any:
    found = [_array(name, arrays) for name in names]
    return found[0] if len(found) == 1 else side_by_side(found)


def _array(name: str, arrays: Mapping[str, Any]) -> Any:
    """Return the array of a name, or the column of a table, such as `obs_0` of `obs`; None without one."""
    if name not in arrays and (match := keys.NUMBERED.fullmatch(name)) and match[1] in arrays:
        table, column = arrays[match[1]], int(match[2])
        return column_of(table, column) if len(shape := shape_of(table)) == 2 and column < shape[1] else None
    return arrays.get(name)


def _find(name: str, part: str, arrays: Mapping[str, Any], where: str) -> str:
    """Return the array of a name, which may leave out the groups that it lies in."""
    own = [key for key in (name, name.replace("next/", "next_"), name.removeprefix("next/")) if key in arrays]
    if own or _array(name, arrays) is not None:
        return [*own, name][0]
    ends = [key for key in arrays if key.endswith(f"/{name}") and (part != "states" or not key.startswith("next_"))]
    if len(ends) != 1:
        listed = list_names(ends or [str(key) for key in arrays])
        raise ValueError(f"{where}: no column {name!r} for the {part}; it has {listed}")
    return ends[0]


def _choose(part: str, arrays: Mapping[str, Any], where: str, count: int) -> str:
    """Return the name of the array of a part, "" without one."""
    names = sorted(
        (name for name in arrays if keys.part_of(name) == part), key=lambda x: keys.KEYS[part].index(keys.words(x))
    )
    if part in _COLUMNS:
        names = [name for name in names if _is_column(arrays[name], count)]
    if part == "steps":
        names = [name for name in names if keys.words(name) not in keys.TIMES] or names[:1]
    if not names:
        return ""
    name, *others = names
    for other in others:
        first, second = (
            1 - x if keys.is_inverted(each) else x
            for each, x in ((each, as_numbers(arrays[each]).reshape(-1)) for each in (name, other))
        )
        if not np.array_equal(first, second):
            advice = f"choose one by {keys.advise(part, name)}"
            if part == "terminals" and (first >= second).all():
                both = f"columns={{'terminals': {other!r}, 'last': {name!r}}} (--columns terminals={other} last={name})"
                advice += f"; if {name!r} also mark cuts, as those of OGBench, by {both}"
            raise ValueError(f"{where}: {name!r} and {other!r} both mean the {part} and disagree; {advice}")
    if part == "states" and (inner := keys.nested("states", arrays)):
        raise ValueError(
            f"{where}: {name!r} may be the states, and so may named ones: choose by "
            f"{keys.advise('states', name)} or {keys.advise('states', *inner)}"
        )
    if part in ("states", "next_states", "actions"):
        numbered = [x for x in arrays if (match := keys.NUMBERED.fullmatch(x)) and match[1] == name]
        if numbered and (shape := shape_of(arrays[name])) and shape[1:] != (len(numbered),):
            own = [name] * (shape == shape_of(arrays[numbered[0]])) + numbered
            following = f", or next ones by columns={{'next_states': {numbered[0]!r}}}" if part == "states" else ""
            raise ValueError(
                f"{where}: there are {name!r} and {numbered[-1]!r}; name those of the {part} by "
                f"columns={{{part!r}: [{list_names([*map(repr, own)])}]}}{following}"
            )
    return name


def _is_column(values: Any, count: int) -> bool:
    return shape_of(values) in ((count,), (count, 1))
