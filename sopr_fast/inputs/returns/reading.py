"""Returns from files, folders of runs, tables, mappings and sequences."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.arrays import as_numbers
from ...runtime.extras import library
from ...runtime.text import NAME_WIDTH, escaped_errors, printable
from ...runtime.warn import warn
from ..accepted import ReturnsLike
from ..logs.episode_files import is_list_of_dicts
from ..logs.files import check_regular
from ..logs.keys import list_names
from .evaluations import read_evaluations

if TYPE_CHECKING:
    import pandas

_COLUMNS = {  # what a column is, and the names that it may have, in any case
    "name": ("name", "policy"),
    "return": ("return", "return_mean", "mean_return", "mean_reward", "mean"),
    "error": (
        *("error", "return_se", "return_error", "return_stderr", "return_sem"),
        *("standard_error", "std_error", "std_err", "stderr", "se", "sem"),
    ),
    "deviation": (
        *("return_std", "std_return", "std_reward", "reward_std"),
        *("standard_deviation", "std", "stdev", "sd"),
    ),
    "rollouts": ("rollouts", "episodes", "n_rollouts", "n_episodes", "n_eval_episodes", "n"),
}
_SPREAD = re.compile(
    r"((return|reward|score|mean)s?_)?(ci|ci_?\d+|conf\w*|std\w*|stderr\w*|var|variance|iqr|lower|upper)"
)
_FEWEST_PAIRS = 3  # policies, from which pairs may be means and deviations, not two rollouts
_REMEDY = "map names to returns, {name: return}"


@escaped_errors()
def load_returns(source: ReturnsLike, names: Sequence[str] | None = None) -> pandas.DataFrame:
    """Return the returns of policies as a table: columns return, error and rollouts, indexed by name.

    `error` is the standard error of the return and `rollouts` their number, NaN where unknown. A single rollout gets
    the standard deviation that the rollouts of the other policies have in common. Policies whose return is NaN, None or
    an empty cell have no row. A run's best model that is the checkpoint of a step has none either: `attrs["copies"]` of
    the table names that checkpoint, and `sopr_fast.select` leaves the copy out.

    - A mapping or series from name to return, or to the returns of rollouts.
    - A data frame, or a `.csv`, `.parquet`, `.json` or `.jsonl` file of records, with a column `name` or `policy` (or
      an index of names) and one `return` or `mean`. If known, a column `error`, `stderr`, `se` or `sem` holds its
      standard error; or `std` the standard deviation of its rollouts, and `rollouts` their number.
    - A `.json` file with an object of name and return, or of name and the returns of rollouts.
    - `evaluations.npz` of Stable-Baselines3's `EvalCallback`, or a folder of runs with such files, for the policies in
      `names`. Each gets the evaluation of its own step, see `evaluations.choose`.
    - A sequence of returns in the order of `names`.

    Args:
        source: What holds the returns.
        names: Names of the policies, needed for the last two.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: A parquet file needs pyarrow.
        TypeError: Returns or names are of the wrong type, or names are needed.
        ValueError: A return is missing, repeated or no finite number, or a file has another layout; the message names
            the policy or the file.

    Warns:
        UserWarning: Standard deviations have no number of rollouts; a column or second return looks like a deviation
            and is not read as one; or a policy is a copy, or has no evaluation.
    """
    import pandas

    where, copies = "returns", dict[str, str]()
    if isinstance(source, str | os.PathLike):
        where, path = os.fspath(source), Path(source)
        if path.is_dir() or path.suffix.lower() == ".npz":
            source, copies = read_evaluations(path, _needed(names))
        else:
            source = _read(path)
    source = _as_frame(source)
    if isinstance(source, pandas.DataFrame):
        copies = source.attrs.get("copies", {})
        table = _of_frame(source, where)
    else:
        table = _of_pairs(_pairs(source, names), where)
    table.attrs["copies"] = copies
    return table


def is_ordered(source: Any) -> bool:
    """Return whether returns, or groups, are in order, not by name."""
    import pandas

    if isinstance(source, pandas.Series):
        return isinstance(source.index, pandas.RangeIndex)
    named = isinstance(source, str | os.PathLike | Mapping | pandas.DataFrame) or is_list_of_dicts(source)
    return source is not None and not named


def _as_frame(source: Any) -> Any:
    """Return the table of records, of columns by name, or of records by name; anything else as it is."""
    import pandas

    if is_list_of_dicts(source):
        return pandas.DataFrame(source)
    if not isinstance(source, Mapping) or not source:
        return source
    labels = {str(label).lower() for label in source}
    if labels & {*_COLUMNS["name"]} and labels & {*_COLUMNS["return"]}:
        is_record = all(isinstance(value, Real | str) for value in source.values())
        return pandas.DataFrame([source] if is_record else dict(source))
    if all(isinstance(value, Mapping) for value in source.values()):
        return pandas.DataFrame.from_dict(dict(source), orient="index")
    return source


def _needed(names: Sequence[str] | None) -> Sequence[str]:
    if names is None:
        raise TypeError(f"these returns have no names: {_REMEDY}, or pass names=")
    return names


def _pairs(source: Any, names: Sequence[str] | None) -> Iterable[tuple[Any, Any]]:
    """Return pairs of name and return, or of name and the returns of rollouts."""
    if source is None:
        raise ValueError("returns are needed (or preferences)")
    if isinstance(source, Mapping):
        return source.items()
    if not is_ordered(source):
        return zip(source.index, source, strict=True)
    if isinstance(source, Set) or not isinstance(source, Iterable):
        raise TypeError(f"returns are a {type(source).__name__}: {_REMEDY}")
    values = list(as_numbers(source) if hasattr(source, "__array__") else source)
    names = _needed(names)
    if len(values) != len(names):
        raise ValueError(f"there are {len(values)} returns for {len(names)} policies: {_REMEDY}")
    return zip(names, values, strict=True)


def _read(path: Path) -> pandas.DataFrame | dict[str, Any] | list[dict[str, Any]]:
    """Return the table in a file, or the object or the records in a JSON file."""
    import pandas

    check_regular(path)
    kind = path.suffix.lower()
    if kind == ".parquet":
        library("pyarrow", "parquet", f"{path}: reading it")
        return pandas.read_parquet(path)
    if kind not in (".json", ".jsonl", ".ndjson"):
        return _read_csv(path)
    content = load_json(path, "return", lines=kind != ".json")
    if not isinstance(content, dict) and not is_list_of_dicts(content):
        raise ValueError(f"{path}: its returns have no names: write an object of name and return")
    return content


def load_json(path: Path, what: str, *, lines: bool = False) -> Any:
    """Return the content of a JSON file in UTF-8, or the list of its lines' contents.

    Args:
        path: The file.
        what: What its objects hold of each name, such as "return".
        lines: Whether each line is JSON of its own.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no JSON file, or an object in it has a name twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if repeated := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
            raise ValueError(f"{path}: a second {what} of {repeated[0]!r}")
        return dict(pairs)

    try:
        text = path.read_text(encoding="utf-8-sig")
        if lines:
            return [json.loads(line, object_pairs_hook=unique) for line in text.splitlines() if line.strip()]
        return json.loads(text, object_pairs_hook=unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error


def _read_csv(path: Path) -> pandas.DataFrame:
    """Return the cells of a CSV file as text; commas, semicolons or tabs separate them.

    Numbers may have decimal commas if no comma separates them, and none has a point.
    """
    import pandas

    form: dict[str, Any] = {"dtype": str, "keep_default_na": False, "encoding": "utf-8-sig", "skipinitialspace": True}
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = next((line for line in file if line.strip()), "")
        separator = max(",;\t", key=first.count)
        table = pandas.read_csv(path, sep=separator, header=None, **form)
    except ValueError as error:
        raise ValueError(f"{path}: not a table in UTF-8 whose rows have as many cells as the first: {error}") from error
    header = [str(cell).strip() for cell in table.iloc[0]]
    if not header[0] and not {cell.lower() for cell in header} & {*_COLUMNS["name"]}:
        header[0] = "name"  # as pandas writes an index
    table = table[1:].fillna("").set_axis(header, axis=1)
    numbers = [label.lower() not in _COLUMNS["name"] and _part_of(label) != "" for label in header]
    cells = table.loc[:, numbers]
    if separator != "," and not cells.apply(lambda column: column.str.contains(".", regex=False)).any(axis=None):
        table.loc[:, numbers] = cells.replace(r"^([-+]?\d+),(\d+)$", r"\1.\2", regex=True)
    return table


def _part_of(label: Any) -> str:
    """Return what a column is by its label, "" if nothing."""
    return next((part for part, labels in _COLUMNS.items() if str(label).strip().lower() in labels), "")


def _of_frame(frame: pandas.DataFrame, where: str) -> pandas.DataFrame:
    """Return the returns in a table with one row for each policy."""
    parts: dict[str, list[Any]] = {}
    for part in _COLUMNS:
        same = [i for i, label in enumerate(frame.columns) if _part_of(label) == part]
        if len(same) > 1:
            columns = " and ".join(str(frame.columns[i]) for i in same)
            raise ValueError(f"{where}: columns {printable(columns)} mean the same; leave only one of them")
        if same:
            parts[part] = frame.iloc[:, same[0]].tolist()
    if "name" not in parts and all(isinstance(label, str) for label in frame.index):
        parts["name"] = frame.index.tolist()
    if "name" not in parts or "return" not in parts:
        found = printable(", ".join(map(str, frame.columns)))
        raise ValueError(
            f"{where}: expected columns name and return in the first row, found {found}; write one row for each "
            f"policy, or {_REMEDY}"
        )
    names = [name.strip() if isinstance(name, str) else name for name in parts.pop("name")]
    numbers = {part: np.full(len(names), math.nan) for part in ("return", "error", "deviation", "rollouts")}
    for part, values in parts.items():
        numbers[part][:] = [_number(name, value, part, where) for name, value in zip(names, values, strict=True)]
    error, deviation, rollouts = numbers["error"], numbers["deviation"], numbers["rollouts"]
    is_known = ~np.isnan(numbers["return"])
    if (wrong := is_known & ((rollouts < 1) | (rollouts % 1 > 0))).any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{where}: the rollouts of policy {names[row]!r} are {rollouts[row]:g}, expected a whole number, "
            "1 or more, or an empty cell"
        )
    if (unused := is_known & np.isnan(error) & np.isnan(rollouts) & ~np.isnan(deviation)).any():
        warn(
            f"{where}: standard deviations are ignored without the number of rollouts, for policies "
            f"{list_names([names[i] for i in np.flatnonzero(unused)])}; add a column rollouts, or a column error"
        )
    unread = [str(label) for label in frame.columns if not _part_of(label) and _SPREAD.fullmatch(str(label).lower())]
    if unread and not {"error", "deviation"} & {*parts}:
        warn(
            f"{where}: columns not read: {list_names(unread)}, which may hold errors of returns; add a column "
            "error of standard errors (an interval of 95 % is 3.92 of them wide), or columns std and rollouts"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(np.isnan(error) & (rollouts > 1), deviation / np.sqrt(rollouts), error)
    return _table(names, numbers["return"], error, rollouts, where)


def _of_pairs(pairs: Iterable[tuple[Any, Any]], where: str) -> pandas.DataFrame:
    """Return the returns in pairs of name and return, or of name and the returns of rollouts."""
    names: list[Any] = []
    rows: list[tuple[float, float, float]] = []
    given: list[np.ndarray] = []
    for name, value in pairs:
        if isinstance(value, tuple) and len(value) == 2:  # as evaluate_policy of Stable-Baselines3 returns
            raise TypeError(
                f"{where}: the return of policy {name!r} is a pair, which may be a mean and a deviation: pass a list "
                "of the returns of rollouts, or a data frame of name, return, std and rollouts"
            )
        rollouts = np.array([_number(name, each, "return", where) for each in np.atleast_1d(as_numbers(value))])
        if np.ndim(value) and (not len(rollouts) or np.isnan(rollouts).any()):
            raise ValueError(f"{where}: the rollouts of policy {name!r} must be one or more finite returns")
        error = rollouts.std(ddof=1) / math.sqrt(len(rollouts)) if len(rollouts) > 1 else math.nan
        names.append(name)
        rows.append((rollouts.mean(), error, len(rollouts) if np.ndim(value) else math.nan))
        given.append(rollouts)
    if len(given) >= _FEWEST_PAIRS and all(len(pair) == 2 and 0 <= pair[1] < abs(pair[0]) / 2 for pair in given):
        warn(
            f"{where}: each policy has two returns, taken as those of two rollouts; the second ones look like standard "
            "deviations: if they are, pass a data frame of name, return, std and rollouts"
        )
    means, errors, counts = np.array(rows, np.float64).reshape(-1, 3).T
    return _table(names, means, errors, counts, where)


def _table(
    names: list[Any], returns: np.ndarray, error: np.ndarray, rollouts: np.ndarray, where: str
) -> pandas.DataFrame:
    """Return the table of returns, checked."""
    import pandas

    if wrong := [name for name in names if not isinstance(name, str)]:
        raise TypeError(f"{where}: names of policies must be strings, got {wrong[0]!r}")
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"{where}: several returns of policy {repeated[0]!r}: give their mean, or {{name: [return, …]}}"
        )
    several, single = (rollouts > 1) & ~np.isnan(error), (rollouts == 1) & ~(error > 0)
    if several.any():
        weights = rollouts[several] - 1
        error[single] = np.sqrt((weights * rollouts[several] * error[several] ** 2).sum() / weights.sum())
    columns = {"return": returns, "error": error, "rollouts": rollouts}
    table = pandas.DataFrame(columns, index=pandas.Index(names, dtype=object, name="name")).dropna(subset="return")
    if table.empty:
        raise ValueError(f"{where}: no returns in it")
    return table


def _number(name: Any, value: Any, part: str, where: str) -> float:
    """Return a finite number, not negative unless it is a return; NaN where unknown."""
    if value is None or str(value) in ("", "nan", "<NA>"):
        return math.nan
    plain = value.item() if hasattr(value, "item") and not np.ndim(value) else value
    try:
        number = float(plain) if isinstance(plain, Real | str) and not isinstance(plain, bool) else math.nan
    except (OverflowError, ValueError):
        number = math.nan
    if not math.isfinite(number) or not (part == "return" or number >= 0):
        expected = "a finite number" if part == "return" else "0 or more"
        shown = printable(str(value), NAME_WIDTH)
        raise ValueError(f"{where}: the {part} of policy {name!r} is {shown!r}, expected {expected}")
    return number
