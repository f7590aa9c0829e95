"""Returns, and groups, of policies from mappings, tables, folders of runs and sequences."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import formats
from ...argument_types import ReturnsLike
from ...runtime.arrays import as_numbers
from ...runtime.files import check_regular, naming
from ...runtime.text import NAME_WIDTH, escaped_errors, is_cost, list_names, printable, suggest
from ...runtime.warn import warn
from ..named_arrays import load_csv, load_json

if TYPE_CHECKING:
    import pandas

    from ..policies import Policies

PARTS = ("name", "return", "cost", "error", "rollouts")  # exact names of columns; `columns` names others
_LIMITS = {  # part → least, what is expected
    "return": (-sys.float_info.max, "a finite number, without error or unit"),
    "error": (0, "0 or more"),
    "rollouts": (1, "a whole number, 1 or more"),
}
_REMEDY = "map names to returns, {name: return}"


@escaped_errors()
def load_returns(
    source: ReturnsLike, names: Sequence[str] | None = None, *, columns: Mapping[str, str] | None = None
) -> pandas.DataFrame:
    """Return the returns of policies as a table: columns return, error and rollouts, indexed by name.

    `error` is the standard error of the return and `rollouts` their number, NaN where unknown. Policies whose return is
    NaN, None or an empty cell have no row.

    Args:
        source: Mapping from name to return, to the returns of rollouts, or to a mapping of columns; data frame of a row
            for each policy, or `.csv` file of one, with columns `name` (or `policy`), `return` or `cost`, and perhaps
            `error` and `rollouts`; `.json` file of a mapping; `evaluations.npz` of Stable-Baselines3's `EvalCallback`,
            or a folder of runs with such files; or returns in the order of `names`.
        names: Names of the policies, needed for the last two.
        columns: Names of columns that are called otherwise, such as `{"return": "mean_reward", "error": "se"}`. The
            return is the negative of a `cost`.

    Raises:
        FileNotFoundError: There is no such file.
        TypeError, ValueError: Names are needed; or a return is missing, repeated or no finite number, or a file has
            another layout. Names the policy or the file.

    Warns:
        UserWarning: Columns are not read.
    """
    columns = columns or {}
    if wrong := [part for part in columns if part not in PARTS]:
        raise ValueError(f"load_returns(…, columns={{{wrong[0]!r}: …}}): expected one of {', '.join(PARTS)}")
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    with naming(path or "returns"):
        content = source if path is None else _read(path, names)
        return _table(_named(_as_frame(content, names), columns))


def is_ordered(source: Any) -> bool:
    """Return whether returns are in order, not by name."""
    return not (source is None or isinstance(source, str | os.PathLike) or hasattr(source, "items"))


def check_ordered(what: str, values: Any, policies: Policies) -> None:
    """Raise ValueError if values, such as "returns", are in order, and policies are of files, which have no order."""
    if is_ordered(values) and not policies.in_memory:
        raise ValueError(
            f"{what} are in order, but policies come from files: give {what} by their names, or as one path"
        )


def with_returns(policies: Policies, returns: Any) -> tuple[Policies, pandas.DataFrame]:
    """Return the policies that have a return, and the table of their returns in the same order; warn of others."""
    check_ordered("returns", returns, policies)
    table = find_returns(returns, list(policies)).dropna(subset="return")
    if len(table) < len(policies):
        warn(f"policies without a return are left out: {_describe_missing(policies, table)}")
    return policies.take(table.index), table


def check_returns(returns: Any, names: Sequence[str]) -> np.ndarray:
    """Return the returns of all named policies, (M,) float64; raise ValueError if one has none."""
    table = load_returns(returns, names)
    if missing := _describe_missing(names, table):
        raise ValueError(missing)
    return table.loc[list(names), "return"].to_numpy(copy=True)


def find_returns(returns: Any, names: Sequence[str]) -> pandas.DataFrame:
    """Return the table of returns with a row for each named policy, NaN where unknown; warn of returns of others.

    ValueError is raised if no policy has one.
    """
    given = load_returns(returns, names)
    table = given.reindex(list(names))
    missing, others = table.index[table["return"].isna()], given.index.difference(names, sort=False)
    if len(missing) == len(names):
        raise ValueError(
            f"no policy has a return: returns are given of {list_names([*given.index])}, the policies are "
            f"{list_names(names)}; name them alike"
        )
    if len(missing) and len(others):
        warn(f"returns of {list_names([*others])} are of no policy{suggest(others[0], missing)}: name them alike")
    return table


def check_groups(groups: Any, names: Sequence[str]) -> list[Any]:
    """Return the group of every named policy, from a mapping or series by name."""
    import pandas

    if not isinstance(groups, Mapping | pandas.Series):
        raise TypeError(f"groups must be by name, {{policy: group}}, got {type(groups).__name__}")
    given = pandas.Series(dict(groups), dtype=object).dropna()
    if missing := _describe_missing(names, given, "groups"):
        raise ValueError(f"{missing}: name the group of each")
    return [*given[[*names]]]


def _describe_missing(names: Iterable[str], given: pandas.DataFrame | pandas.Series, what: str = "returns") -> str:
    """Return which policies have no row, and the nearest name of no policy, for messages; "" if all have one."""
    missing = [name for name in names if name not in given.index]
    if not missing:
        return ""
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{what} hold nothing for policy {missing[0]!r}{suggest(missing[0], {*given.index}.difference(names))}{more}"


def _read(path: Path, names: Sequence[str] | None) -> Any:
    """Return the table in a file, the object in a JSON file, or returns by name of evaluations."""
    suffix = path.suffix.lower()
    if path.is_dir() or suffix == ".npz":
        return formats.load(formats.EVALUATIONS)(path, _needed(names))
    check_regular(path)
    if suffix != ".json":
        return load_csv(path, dtype=str, keep_default_na=False)
    if is_ordered(content := load_json(path)):
        raise ValueError("its returns have no names: write an object of name and return")
    return content


def _needed(names: Sequence[str] | None) -> Sequence[str]:
    if names is None:
        raise TypeError(f"these returns have no names: {_REMEDY}, or pass names=")
    return names


def _as_frame(source: Any, names: Sequence[str] | None) -> pandas.DataFrame:
    """Return the table of returns, or of mappings of columns, by name; or of returns in order."""
    import pandas

    if source is None:
        raise ValueError(f"returns are needed: {_REMEDY}")
    if isinstance(source, pandas.DataFrame | pandas.Series):  # the name of a series may say that it holds costs
        return source if isinstance(source, pandas.DataFrame) else source.to_frame(source.name or "return")
    if is_ordered(source):
        if isinstance(source, Set) or not isinstance(source, Iterable):
            raise TypeError(f"returns are a {type(source).__name__}: {_REMEDY}, after policies and log")
        values, names = list(as_numbers(source) if hasattr(source, "__array__") else source), _needed(names)
        if len(values) != len(names):
            raise ValueError(f"there are {len(values)} returns for {len(names)} policies: {_REMEDY}, after the log")
        pairs = [*zip(names, values, strict=True)]
    else:
        pairs = [*source.items()]
    mapped, others = ([str(name) for name, x in pairs if isinstance(x, Mapping) == kind] for kind in (True, False))
    if mapped and others:
        forms = f"a mapping for {list_names(mapped, 3)}, a number or a list for {list_names(others, 3)}"
        raise ValueError(f"{forms}: give all as {{name: {{'return': …}}}}, where … is a number or a list of rollouts")
    if mapped:
        return pandas.DataFrame.from_dict(dict(pairs), orient="index")
    return pandas.DataFrame(pairs, columns=["name", "return"], dtype=object)


def _named(frame: pandas.DataFrame, columns: Mapping[str, str]) -> pandas.DataFrame:
    """Return the parts of returns in a frame with a row for each policy, indexed by name."""
    found = printable(", ".join(map(str, frame.columns)))
    if missing := [name for name in columns.values() if name not in frame.columns]:
        raise ValueError(f"no column {missing[0]!r}{suggest(missing[0], frame.columns)}, found {found}")
    if is_cost(label := columns.get("return", "")):
        raise ValueError(
            f"returns are larger for better policies, but are called {label!r}: pass "
            f"load_returns(…, columns={{'cost': {label!r}}}), or rename them"
        )
    own = dict(zip(PARTS, PARTS, strict=True)) | ({} if "name" in frame.columns else {"name": "policy"})
    labels = {part: label for part, label in (own | {**columns}).items() if label in frame.columns}
    table = frame[[*labels.values()]].set_axis([*labels], axis=1)
    if "name" not in table and all(isinstance(label, str) for label in frame.index):
        table = table.assign(name=frame.index)
    lacking = ["name"] * ("name" not in table) + ["return"] * (not {"return", "cost"} & labels.keys())
    if lacking:
        raise ValueError(
            f"expected columns name and return (or cost), found {found}, so no {' and no '.join(lacking)}; name yours "
            f"by load_returns(…, columns={{'name': …, 'return': …}}), or {_REMEDY}"
        )
    others = [str(label) for label in frame.columns if label not in labels.values() and "Unnamed" not in str(label)]
    if others and "error" not in labels:
        warn(
            f"columns not read: {list_names(others)}; if they hold standard errors, or numbers of rollouts (not of "
            "training), name them by load_returns(…, columns={'error': …}), rollouts likewise; the error of a mean is "
            "the deviation of rollouts by the root of their number"
        )
    if wrong := [name for name in table["name"] if not isinstance(name, str)]:
        raise TypeError(f"names of policies must be strings, got {wrong[0]!r}")
    table = table.set_index(table.pop("name").astype(object).str.strip())
    if (repeated := table.index[table.index.duplicated()]).size:
        raise ValueError(
            f"several rows of policy {repeated[0]!r}: keep one, with the mean return and its standard error in a "
            "column error, or pass the list of the returns of rollouts; of a learning curve, one step"
        )
    if {"return", "cost"} <= labels.keys():
        given = [list_names([*table.index[table[part].notna()]], 3) for part in ("return", "cost")]
        raise ValueError(f"columns return (of {given[0]}) and cost (of {given[1]}): leave only one of them")
    return table


def _table(cells: pandas.DataFrame) -> pandas.DataFrame:
    """Return the table of returns from cells by name in columns of parts; the return is the negative of a cost."""
    import pandas

    part, sign = ("cost", -1) if "cost" in cells else ("return", 1)
    rows: dict[str, tuple[float, float, float]] = {}
    for name, row in zip(cells.index, cells.to_dict("records"), strict=True):
        returns, is_list = _returns(row[part], name)
        with np.errstate(over="ignore"):
            value = sign * _number(float(np.mean(returns)), "return", name)
        if math.isnan(value):
            continue
        error, rollouts = (_number(row.get(x), x, name) for x in ("error", "rollouts"))
        if is_list:
            rollouts = len(returns)
        if len(returns) > 1:
            error = float(np.std(returns, ddof=1)) / math.sqrt(rollouts)
        rows[name] = value, error, rollouts
    if not rows:
        raise ValueError("no returns in it, or all are NaN or empty; if none is known, leave returns out")
    table = pandas.DataFrame.from_dict(rows, orient="index", columns=["return", "error", "rollouts"], dtype=np.float64)
    table.index = pandas.Index([*rows], dtype=object, name="name")
    return table


def _returns(cell: Any, name: str) -> tuple[list[float], bool]:
    """Return the returns in a cell, NaN for an empty one, and whether they are those of rollouts."""
    if isinstance(cell, tuple):  # as evaluate_policy of Stable-Baselines3 returns
        raise TypeError(
            f"the return of policy {name!r} is a tuple, perhaps of a mean and a deviation: pass a list of the returns "
            "of rollouts, or a data frame of name, return and error"
        )
    content = as_numbers(cell).tolist()
    is_list = isinstance(content, list)
    returns = [_number(item, "return", name) for item in (content if is_list else [content])]
    if is_list and (not returns or np.isnan(returns).any()):
        raise ValueError(f"the rollouts of policy {name!r} must be one or more finite returns")
    return returns, is_list


def _number(cell: Any, part: str, name: str) -> float:
    """Return a cell as a number that the part allows, NaN where it is missing."""
    if cell is None or str(cell).lower() in ("", "nan", "<na>"):
        return math.nan
    number = math.inf
    if isinstance(cell, Real | str) and not isinstance(cell, bool):
        with contextlib.suppress(OverflowError, ValueError):
            number = float(cell)
    least, expected = _LIMITS[part]
    if not least <= number < math.inf or (part == "rollouts" and number % 1):
        shown = printable(str(cell), NAME_WIDTH)
        raise ValueError(f"the {part} of policy {name!r} is {shown!r}, expected {expected}")
    return number
