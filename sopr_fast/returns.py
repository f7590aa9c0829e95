"""Returns as users give them: by name, in order, in files."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

_COLUMNS = (("name", "policy"), ("return", "return_mean"))
_UNNAMED_SERIES = ["", "0"]  # its header, as pandas writes it


def check_returns(returns: Any, names: list[str]) -> np.ndarray:
    """Returns (M,) float64 in the order of the names, from a mapping, an array or any iterable that has an order.

    A pandas series is by name if its index holds strings, and in order if its index is 0, 1, ….

    Raises:
        TypeError, ValueError: missing, twice, of another number, or not finite (whose); a table; another index.
    """
    if returns is None:
        raise ValueError("returns are needed (or preferences)")
    if hasattr(returns, "columns"):
        raise TypeError(f"returns are a {type(returns).__name__}; pass one of its columns")
    keys = list(returns.keys()) if hasattr(returns, "keys") else None
    if isinstance(returns, Mapping) or any(isinstance(key, str) for key in keys or ()):
        count = Counter(keys)
        for name in names:
            if count[name] != 1:
                raise ValueError(f"returns hold {'several numbers' if count[name] else 'nothing'} for policy {name!r}")
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
    except (TypeError, ValueError) as error:
        raise TypeError(f"returns must be numbers: {error}") from error
    if values.shape != (len(names),):
        raise ValueError(f"returns must have shape ({len(names)},), one for each policy, got {values.shape}")
    if not np.isfinite(values).all():
        i = int(np.argmin(np.isfinite(values)))
        raise ValueError(f"the return of policy {names[i]!r} is {values[i]}")
    return values


def read_returns(path: Path, names: list[str]) -> dict[str, float]:
    """Name and return of policies, from a CSV file with columns name or policy and return or return_mean, in any case.

    Without a header the first two columns are meant; a first column without one, as of a pandas index, is of names.
    Integers that name no policy are positions in `names`.

    Raises:
        FileNotFoundError, ValueError: no such file, or the line at fault.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            read = [(line, row) for line, row in enumerate(csv.reader(file), 1) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8: {error}") from error
    if not read:
        raise ValueError(f"{path}: no returns in it")
    expected = f"{path}: expected columns name and return, found"
    for separator, called in ((";", "';'"), ("\t", "tabs")):
        if len(read[0][1]) == 1 and separator in read[0][1][0]:
            raise ValueError(f"{expected} {read[0][1][0]}, separated by {called} instead of ','")
    rows = [(line, [cell.strip() for cell in row]) for line, row in read]
    at = [0, 1]
    header = rows[0][1]
    if header == _UNNAMED_SERIES:
        header = ["name", "return"]
    if not any(map(_is_number, header)):
        at = [next((i for i, cell in enumerate(header) if cell.lower() in known), -1) for known in _COLUMNS]
        if at[0] == -1 and not header[0]:
            at[0] = 0
        if -1 in at:
            raise ValueError(f"{expected} {', '.join(header)}")
        rows = rows[1:]
    returns: dict[str, float] = {}
    for line, row in rows:
        where = f"{path}, line {line}"
        if len(row) <= max(at) or not _is_number(row[at[1]]):
            raise ValueError(f"{where}: expected a name and a number, found {','.join(row)}")
        name = row[at[0]]
        if name not in names and name.isdecimal() and int(name) < len(names):
            name = names[int(name)]
        if name not in names:
            raise ValueError(f"{where}: no policy is named {name!r}")
        if name in returns:
            raise ValueError(f"{where}: a second return of {name!r}")
        returns[name] = float(row[at[1]])
    return returns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
