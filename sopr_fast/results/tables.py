"""Tables of results as text of 80 columns and as HTML of notebooks."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runtime.text import printable
from .numbers import number

WIDTH = 80  # characters of a line
SHORTENED = 60  # rows beyond which `print` shows the first and the last five only
_SHOWN = 5  # first and last rows of such a table
_NARROWEST = 20  # characters of names


@dataclass(frozen=True)
class Column:
    """A column of a table of text or of a report: its heading, a text for each row, and whether these are numbers."""

    head: str
    texts: Sequence[str]
    is_number: bool = False


def column(head: str, values: Iterable[float], show: Callable[[float], str] = number) -> Column:
    """Return a column of numbers that a function shows."""
    return Column(head, [show(float(value)) for value in values], True)


def to_text(columns: Sequence[Column], rows: int | None = None) -> str:
    """Return a table of at most 80 columns, for which its first words, which are names, are cut in the middle.

    Texts may be untrusted.
    """
    names = next(column for column in columns if not column.is_number)
    texts = [[printable(text) for text in (column.head, *column.texts)] for column in columns]
    widths, place = [max(map(len, cells)) for cells in texts], columns.index(names)
    excess = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    widths[place] = max(min(widths[place], _NARROWEST), widths[place] - max(0, excess))
    texts[place] = [printable(text, widths[place]) for text in texts[place]]
    padded = [
        [text.rjust(width) if column.is_number else text.ljust(width) for text in cells]
        for column, width, cells in zip(columns, widths, texts, strict=True)
    ]
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    if rows is not None and len(lines) - 1 > max(rows, 2 * _SHOWN):
        lines[1 + _SHOWN : -_SHOWN] = ["..."]
    return "\n".join(lines)


def wrapped(text: str) -> str:
    """Return a sentence, which may hold untrusted names, in lines of at most 80 characters if its words allow."""
    return textwrap.fill(printable(text), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def plain(value: Any) -> Any:
    """Return a value, which may be nested, in the types of JSON; callables in dictionaries are left out."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items() if not callable(item)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def to_html(heading: str, columns: Sequence[Column], rows: int = 20) -> str:
    """Return a heading and a table, shortened to `rows`, as HTML of a notebook; text in them is escaped."""
    import pandas

    frame = pandas.DataFrame({column.head: [printable(text) for text in column.texts] for column in columns})
    table: Any = frame.to_html(max_rows=None if len(frame) <= rows else 10, border=0, index=False)
    return f"<p><b>{html.escape(printable(heading))}</b></p>\n{table}"
