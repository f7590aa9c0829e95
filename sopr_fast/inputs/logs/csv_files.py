"""Logs in CSV files: a header, then a row of numbers for each step."""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path

import numpy as np

from .files import check_memory, reading
from .tables import group_numbered, stack_numbered

_BYTES_PER_VALUE = 2  # at least, of text: a digit and a separator
_FLAGS = {"true": 1.0, "false": 0.0}


def read_csv(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Read arrays from the columns of a file, which are named as in parquet files: `reward`, `obs_0`, `obs_1`, ….

    Args:
        path: File in UTF-8, separated by commas, whose first line names the columns.
        wanted: Names of the arrays to read; the others give empty arrays.

    Raises:
        MemoryError: The wanted columns are larger than the free memory.
        ValueError: The file has no header, a row lacks a value, or a value is not a number.
    """
    with reading(path, "a CSV file with a header"):
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            names = [name.strip() for name in next(rows, [])]
            if len(set(names)) < len(names) or not any(names) or all(map(_is_number, names)):
                raise ValueError(f"its first line must name the columns, each once; it is {','.join(names)[:80]!r}")
            groups = group_numbered(names, wanted)
            numbered = {name for group in groups.values() for name in group}
            needed = [i for i, name in enumerate(names) if name in wanted or name in numbered]
            check_memory(path, 8 * path.stat().st_size // _BYTES_PER_VALUE * len(needed) // len(names))
            values = [_values(row, needed, names, rows.line_num) for row in rows if row]
        table = np.array(values, np.float64).reshape(len(values), len(needed))
    columns = {names[i]: table[:, place] for place, i in enumerate(needed)}
    return stack_numbered(names, columns, groups)


def _values(row: list[str], needed: list[int], names: list[str], line: int) -> list[float]:
    if len(row) != len(names):
        hint = "; write numbers with a decimal point" if len(row) > len(names) else ""
        raise ValueError(f"line {line} has {len(row)} values, the header {len(names)}{hint}")
    try:
        return [_number(row[i]) for i in needed]
    except ValueError:
        i = next(i for i in needed if not _is_number(row[i]))
        raise ValueError(f"line {line}: {names[i]!r} is {row[i][:40]!r}, expected a number") from None


def _number(text: str) -> float:
    flag = _FLAGS.get(text.strip().lower())
    return float(text) if flag is None else flag


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True
