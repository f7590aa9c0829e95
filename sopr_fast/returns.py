"""Returns of policies: by name, in order, from files."""

from __future__ import annotations

import csv
import difflib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

_HEADERS = (("name", "policy"), ("return", "return_mean"))
_PANDAS_SERIES = ["", "0"]  # header of a series without a name


def check_returns(returns: Any, names: list[str]) -> np.ndarray:
    """Return the returns of all named policies, (M,) float64.

    Args:
        returns: Mapping from name to return, path of a file (see `read_returns`), or numbers in the order of the names:
            an array or any ordered iterable. A pandas series is by name if its index holds strings, and in order if its
            index is 0, 1, ….
        names: (M,) names of the policies.

    Raises:
        FileNotFoundError: There is no such file.
        TypeError: Returns are not numbers, or are a table.
        ValueError: Returns are missing, repeated, not finite, of another number, or have another index.
    """
    if returns is None:
        raise ValueError("returns are needed (or preferences)")
    if isinstance(returns, str | os.PathLike):
        returns = read_returns(Path(returns), names)
    if hasattr(returns, "columns"):
        raise TypeError(f"returns are a {type(returns).__name__}; pass one of its columns")
    keys = list(returns.keys()) if hasattr(returns, "keys") else None
    if _are_by_name(returns):
        count = Counter(keys)
        for name in names:
            if count[name] > 1:
                raise ValueError(f"returns hold several numbers for policy {name!r}")
        if missing := without_return(returns, names):
            raise ValueError(describe_missing(missing, returns))
        returns = [returns[name] for name in names]
    elif keys is not None and keys != list(range(len(keys))):
        raise ValueError(
            f"returns have an index that is neither names of policies nor 0 to {len(keys) - 1}; "
            "index them by name, or pass .to_numpy() if they are in the order of the policies"
        )
    elif isinstance(returns, Iterable) and not isinstance(returns, Set) and not hasattr(returns, "__array__"):
        returns = list(returns)
    if isinstance(returns, Tensor):
        returns = returns.detach().cpu().double()
    try:
        values = np.asarray(returns)
        if values.dtype.kind in "SU":
            raise ValueError("they are text")
        values = values.astype(np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise TypeError(f"returns must be numbers: {error}") from error
    if values.shape != (len(names),):
        raise ValueError(f"returns must have shape ({len(names)},), one for each policy, got {values.shape}")
    if not np.isfinite(values).all():
        i = int(np.argmin(np.isfinite(values)))
        raise ValueError(f"the return of policy {names[i]!r} is {values[i]}")
    return values


def without_return(returns: Any, names: list[str]) -> list[str]:
    """Return the names without a return; none if returns are given in order."""
    return [name for name in names if name not in returns.keys()] if _are_by_name(returns) else []  # noqa: SIM118


def describe_missing(missing: list[str], returns: Any) -> str:
    """Return a message that names policies without a return and the nearest names that have one.

    Args:
        missing: Names of policies, at least one.
        returns: Returns by name.
    """
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"returns hold nothing for policy {missing[0]!r}{suggest(missing[0], list(returns.keys()))}{more}"


def suggest(name: str, names: Collection[str]) -> str:
    """Return " (nearest names: …)", or "" if none is near."""
    nearest = difflib.get_close_matches(name, [other for other in names if isinstance(other, str)])
    return f" (nearest names: {', '.join(map(repr, nearest))})" if nearest else ""


def _are_by_name(returns: Any) -> bool:
    if isinstance(returns, Mapping):
        return True
    return hasattr(returns, "keys") and any(isinstance(key, str) for key in returns.keys())  # noqa: SIM118


def read_returns(path: Path, names: list[str]) -> dict[str, float]:
    """Return name and return of the policies in a CSV or JSON file.

    A CSV file has a column `name` or `policy` and a column `return` or `return_mean`, in any case; without a header,
    its first two columns are these. The first column may lack a name, as a pandas index does. A JSON file (`.json`)
    holds an object of name and return, or a list in the order of the names.

    Args:
        path: The file.
        names: Names of the policies. An integer that is none of them is a position among them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file has another layout; the message names the line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    return _read_json(path, names) if path.suffix.lower() == ".json" else _read_csv(path, names)


def _read_json(path: Path, names: list[str]) -> dict[str, float]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error
    if isinstance(content, list):
        if len(content) != len(names):
            raise ValueError(f"{path}: has {len(content)} returns for {len(names)} policies; map names to returns")
        content = dict(zip(names, content, strict=True))
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object of name and return, or a list of returns")
    for name, value in content.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{path}: the return of {name!r} is no number")
    return content


def _read_csv(path: Path, names: list[str]) -> dict[str, float]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(line, row) for line, row in enumerate(csv.reader(file), 1) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8: {error}") from error
    if not lines:
        raise ValueError(f"{path}: no returns in it")
    expected = f"{path}: expected columns name and return, found"
    for separator, label in ((";", "';'"), ("\t", "tabs")):
        if len(lines[0][1]) == 1 and separator in lines[0][1][0]:
            raise ValueError(f"{expected} {lines[0][1][0]}, separated by {label} instead of ','")
    rows = [(line, [cell.strip() for cell in row]) for line, row in lines]
    header = rows[0][1]
    if header == _PANDAS_SERIES:
        header = ["name", "return"]
    name_column, return_column = 0, 1
    if not any(map(_is_number, header)):
        name_column, return_column = (
            next((i for i, cell in enumerate(header) if cell.lower() in labels), -1) for labels in _HEADERS
        )
        if name_column == -1 and not header[0]:
            name_column = 0
        if -1 in (name_column, return_column):
            raise ValueError(f"{expected} {', '.join(header)}")
        rows = rows[1:]
    returns: dict[str, float] = {}
    for line, row in rows:
        where = f"{path}, line {line}"
        if len(row) <= max(name_column, return_column) or not _is_number(row[return_column]):
            raise ValueError(f"{where}: expected a name and a number, found {','.join(row)}")
        name = row[name_column]
        if name not in names and name.isdecimal() and int(name) < len(names):
            name = names[int(name)]
        if name in returns:
            raise ValueError(f"{where}: a second return of {name!r}")
        returns[name] = float(row[return_column])
    return returns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
