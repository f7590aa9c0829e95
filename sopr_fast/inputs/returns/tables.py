"""Returns in CSV and JSON files and in data frames."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.text import printable
from ...runtime.warn import warn
from ..logs.keys import list_names
from ..policies.files import first_descent
from .values import Returns, of_rollouts, with_single_rollouts

_NAME, _RETURN = ("name", "policy"), ("return", "return_mean")
_ERROR = ("return_se", "return_error", "return_stderr", "standard_error")
_DEVIATION, _ROLLOUTS = ("return_std",), ("rollouts", "episodes")
_PANDAS_SERIES = ["", "0"]  # header of a series without a name
_EXPECTED = "expected columns name and return, found"

_Rows = list[tuple[int, list[str]]]  # line numbers and cells


def load_json(path: Path, what: str) -> Any:
    """Return the content of a JSON file in UTF-8, with or without a byte order mark.

    Args:
        path: The file.
        what: What its objects hold of each name, such as "return".

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no JSON file, or an object in it has a name twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            repeated = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
            raise ValueError(f"{path}: a second {what} of {repeated!r}")
        return values

    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error


def read_json(path: Path, names: list[str], by_name: bool = False) -> Returns:
    """Read an object of name and return, or of name and the returns of its rollouts; or a list of returns in order."""
    content = load_json(path, "return")
    if isinstance(content, list):
        if by_name:
            raise ValueError(f"{path}: its returns are in order; map names to returns")
        if len(content) != len(names):
            raise ValueError(f"{path}: has {len(content)} returns for {len(names)} policies; map names to returns")
        if swapped := first_descent(names):
            raise ValueError(
                f"{path}: its returns are in order, which may be misunderstood, since policy {printable(swapped[0])!r} "
                f"comes before {printable(swapped[1])!r}; map names to returns"
            )
        content = dict(zip(names, content, strict=True))
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object of name and return, or a list of returns")
    returns = Returns()
    counts: dict[str, float] = {}
    for name, value in content.items():
        rollouts = value if isinstance(value, list) and value else [value]
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in rollouts):
            raise ValueError(f"{path}: the return of {name!r} is no number")
        try:
            rollouts = list(map(float, rollouts))
        except OverflowError as error:
            raise ValueError(f"{path}: the return of {name!r} is too large: {error}") from error
        if isinstance(value, list):
            returns[name], returns.errors[name] = of_rollouts(rollouts)
            counts[name] = len(rollouts)
        else:
            returns[name] = rollouts[0]
    _share_errors(returns, counts)
    return returns


def read_csv(
    path: Path, names: list[str], rollouts: int | None = None, skipped: Sequence[str] = (), by_name: bool = False
) -> Returns:
    """Read a table of a name and a return in each row, and of standard errors where it has them.

    Args:
        path: The file.
        names: See `read_returns`.
        rollouts: See `read_returns`.
        skipped: See `read_returns`.
        by_name: See `read_returns`.
    """
    header, (name_column, return_column), rows = _split_header(path, _read_rows(path))
    errors = [_find(header, labels) for labels in (_ERROR, _DEVIATION, _ROLLOUTS)]
    _check_header(header, rollouts, str(path))
    are_positions = not any(len(row) > name_column and row[name_column] in names for _, row in rows)
    doubt = _doubts(names, skipped, by_name)
    returns, unused = Returns(), []
    counts: dict[str, float] = {}
    for line, row in rows:
        where = f"{path}, line {line}"
        if any(row[len(header) :]):
            raise ValueError(
                f"{where}: has {len(row)} cells, the first line has {len(header)}; quote cells with a comma, and write "
                f"numbers without: {printable(','.join(row))}"
            )
        if len(row) <= max(name_column, return_column) or not _is_number(row[return_column]):
            raise ValueError(f"{where}: expected a name and a number, found {printable(','.join(row))}")
        name = row[name_column]
        if are_positions and name.isdecimal() and name == str(int(name)):  # "007" is a name
            if reason := doubt(int(name)):
                raise ValueError(
                    f"{where}: {name!r} is no policy's name, and as a position it {reason}; give the policy's name, or "
                    "leave the row out"
                )
            name = names[int(name)]
        if name in returns:
            raise ValueError(f"{where}: a second return of {name!r}")
        returns[name] = float(row[return_column])
        cells = [row[column] if 0 <= column < len(row) else "" for column in errors]
        spread, count = _standard_error(cells, f"{where}: {name!r}", rollouts)
        if spread is not None:
            returns.errors[name] = spread
        elif cells[1]:
            unused.append(name)
        if count is not None:
            counts[name] = count
    _warn_of_deviations(unused, str(path))
    _share_errors(returns, counts)
    return returns


def _doubts(names: list[str], skipped: Sequence[str], by_name: bool) -> Callable[[int], str]:
    """Return a function that says why a position, counted from 0, may be that of another policy; "" for no reason."""
    swapped, numbered = tuple(map(printable, first_descent(names))), defaultdict[int, list[str]](list)
    for name in names:
        for number in set(map(int, re.findall(r"\d+", name))):
            numbered[number].append(name)

    def doubt(position: int) -> str:
        if by_name:
            return "is in an order that only the library knows"
        if skipped:
            return f"may have shifted, since {skipped[0]} was skipped"
        if swapped:
            return f"may be misunderstood, since policy {swapped[0]!r} comes before {swapped[1]!r}"
        if position >= len(names):
            return f"is too large for {len(names)} policies, counted from 0"
        alike = numbered.get(position, [])
        if len(alike) == 1 and alike != [names[position]]:
            return f"is that of policy {printable(names[position])!r}, counted from 0, not of {printable(alike[0])!r}"
        return ""

    return doubt


def _read_rows(path: Path) -> _Rows:
    """Return the lines that are not empty, at least one."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [(line, row) for line, row in enumerate(csv.reader(file), 1) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise ValueError(f"{path}: no returns in it")
    first = rows[0][1]
    for separator, label in ((";", "';'"), ("\t", "tabs")):
        if len(first) == 1 and separator in first[0]:
            raise ValueError(f"{path}: {_EXPECTED} {printable(first[0])}, separated by {label} instead of ','")
    return [(line, [cell.strip() for cell in row]) for line, row in rows]


def _split_header(path: Path, rows: _Rows) -> tuple[list[str], tuple[int, int], _Rows]:
    """Return the header, or the first row in place of one; the columns of names and returns; the rows below it."""
    line, header = rows[0]
    if header == _PANDAS_SERIES:
        return ["name", "return"], (0, 1), rows[1:]
    if any(map(_is_number, header)):
        if any(header[2:]):
            raise ValueError(
                f"{path}, line {line}: has {len(header)} cells and no header; begin the file with a line like "
                f"name,return,return_se, and quote cells with a comma: {printable(','.join(header))}"
            )
        return header, (0, 1), rows
    name_column, return_column = (_find(header, labels) for labels in (_NAME, _RETURN))
    if name_column == -1 and not header[0]:
        name_column = 0
    if -1 in (name_column, return_column):
        raise ValueError(f"{path}: {_EXPECTED} {printable(', '.join(header))}")
    return header, (name_column, return_column), rows[1:]


def read_frame(frame: Any, rollouts: int | None = None) -> Returns:
    """Read a data frame with a row for each policy, whose columns are named as those of a CSV file.

    Its index holds the names if no column does.

    Raises:
        TypeError: There is no column of returns, or none of names.
        ValueError: A return is repeated or no number.
    """
    header = [str(name) for name in frame.columns]
    kind = type(frame).__name__
    if _find(header, _RETURN) == -1:
        columns_there = printable(", ".join(header))
        raise TypeError(f"returns are a {kind} of {columns_there}; pass one of its columns, or name one 'return'")
    _check_header(header, rollouts, f"the {kind}")
    columns = [[*frame[frame.columns[i]]] if i >= 0 else None for i in (_find(header, part) for part in _PARTS)]
    labels, values = columns[0], columns[1]
    if labels is None:
        labels = [*frame.index] if hasattr(frame, "index") else []
        if not all(isinstance(label, str) for label in labels) or len(labels) != len(frame):
            raise TypeError(f"returns are a {kind} without names; name a column 'name', or index it by name")
    returns, unused = Returns(), []
    counts: dict[str, float] = {}
    for row, (name, value) in enumerate(zip(map(str, labels), values or [], strict=True)):
        if name in returns:
            raise ValueError(f"returns hold several values for policy {name!r}")
        if isinstance(value, str) or not hasattr(value, "__float__"):
            raise ValueError(f"the {kind} of returns holds {value!r} for policy {name!r}, expected a number")
        returns[name] = float(value)
        cells = ["" if column is None or _is_missing(column[row]) else str(column[row]) for column in columns[2:]]
        spread, count = _standard_error(cells, f"{name!r}", rollouts)
        if spread is not None:
            returns.errors[name] = spread
        elif cells[1]:
            unused.append(name)
        if count is not None:
            counts[name] = count
    _warn_of_deviations(unused, f"the {kind}")
    _share_errors(returns, counts)
    return returns


_PARTS = (_NAME, _RETURN, _ERROR, _DEVIATION, _ROLLOUTS)


def _find(header: Sequence[str], labels: Sequence[str]) -> int:
    return next((i for i, cell in enumerate(header) if cell.lower() in labels), -1)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.floating) and math.isnan(value))


def _check_header(header: Sequence[str], rollouts: int | None, where: str) -> None:
    for labels in _PARTS:
        same = [cell for cell in header if cell.lower() in labels]
        if len(same) > 1:
            raise ValueError(f"{where}: columns {printable(' and '.join(same))} mean the same; leave only one of them")
    if rollouts is not None and _find(header, _DEVIATION) == -1:
        raise ValueError(f"{where}: rollouts need a column return_std, the standard deviation over them")


def _warn_of_deviations(names: list[str], where: str) -> None:
    if names:
        warn(
            f"{where}: return_std is ignored without the number of rollouts, for policies {list_names(names)}; add a "
            "column rollouts, or a column return_se of standard errors"
        )


def _standard_error(cells: Sequence[str], where: str, rollouts: int | None) -> tuple[float | None, float | None]:
    """Return the standard error in a row, given or from the deviation over rollouts, and the number of rollouts.

    The error is None where nothing tells it; the number where it tells nothing of the deviation of other policies.

    Args:
        cells: Standard error, standard deviation and number of rollouts, "" where there is none.
        where: Beginning of the message.
        rollouts: Number of rollouts in place of that in the row, or None.

    Raises:
        ValueError: One is no number or negative, or there are no rollouts.
    """
    numbers = []
    for label, cell in zip(("standard error", "standard deviation", "number of rollouts"), cells, strict=True):
        if cell and not (_is_number(cell) and 0 <= float(cell) < math.inf):
            raise ValueError(f"{where} has the {label} {cell}, expected a number that is not negative")
        numbers.append(float(cell) if cell else None)
    error, deviation, count = numbers
    if rollouts is not None:
        if deviation is None and error is not None:
            raise ValueError(f"{where} has a standard error but no standard deviation for rollouts; give one of them")
        error, count = None, float(rollouts)
    if error is not None or count is None or (deviation is None and count != 1):
        return error, None
    if count < 1:
        raise ValueError(f"{where} has {count:g} rollouts, expected at least 1")
    return None if deviation is None else deviation / math.sqrt(count), count


def _share_errors(returns: Returns, counts: dict[str, float]) -> None:
    """Give the policies of a single rollout the error that the others tell; `counts` are rollouts by name."""
    errors = np.array([returns.errors.get(name, 0.0) for name in counts])
    shared = with_single_rollouts(errors, np.array([*counts.values()])).tolist()
    returns.errors |= {name: error for name, error in zip(counts, shared, strict=True) if error > 0}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
