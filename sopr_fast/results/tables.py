"""Tables of results as text of 80 columns and as HTML of notebooks."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..runtime.text import printable
from .numbers import MISSING

if TYPE_CHECKING:
    import pandas

WIDTH = 80  # characters of a line
SHORTENED = 60  # rows beyond which `print` shows the first and the last five only
_SHOWN = 5  # first and last rows of such a table
_NARROWEST = 20  # characters of names


def to_text(cells: Mapping[str, Sequence[str]], *, left: Collection[str], rows: int | None = None) -> str:
    """Return a table of at most 80 columns, for which the names in its first left column are cut in the middle.

    `cells` are printed values, which may be untrusted, by heading; those of `left` headings are words.
    """
    texts = {head: [printable(head), *map(printable, column)] for head, column in cells.items()}
    widths = {head: max(map(len, column)) for head, column in texts.items()}
    names = next(head for head in cells if head in left)
    excess = sum(widths.values()) + 2 * (len(widths) - 1) - WIDTH
    widths[names] = max(min(widths[names], _NARROWEST), widths[names] - max(0, excess))
    texts[names] = [printable(text, widths[names]) for text in texts[names]]
    padded = [
        [text.ljust(widths[head]) if head in left else text.rjust(widths[head]) for text in column]
        for head, column in texts.items()
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


def to_html(heading: str, frame: pandas.DataFrame, rows: int = 20) -> str:
    """Return a heading and a data frame, shortened to `rows`, as HTML of a notebook; text in them is escaped."""
    words = frame.select_dtypes(exclude=["number", "boolean", "bool"]).columns
    shown = frame.assign(**{head: frame[head].map(lambda value: printable(value)) for head in words})
    table: Any = shown.rename(columns=printable).to_html(
        max_rows=None if len(frame) <= rows else 10,
        border=0,
        na_rep=MISSING,
        float_format="{:,.4g}".format,
        index=False,
    )
    return f"<p><b>{html.escape(printable(heading))}</b></p>\n{table}"
