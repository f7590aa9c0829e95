"""What a page consists of, and how it becomes one HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from .svg import Drawing, StyleSheet
from .text import safe


@dataclass(frozen=True)
class Cell:
    """One value of a table.

    Attributes:
        text: What is shown.
        key: What rows are sorted by; None stands last.
    """

    text: Any
    key: float | str | None = None


@dataclass(frozen=True)
class Column:
    """Head of a column of a table.

    Attributes:
        head: What it is called.
        numeric: Whether it holds numbers, which stand on the right.
        help: What it means, in a sentence.
    """

    head: str
    numeric: bool = True
    help: str = ""


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows.

    Attributes:
        caption: What the table shows.
        columns: Heads.
        rows: Cells of each row.
        kinds: Class of each row, such as "candidate"; empty for none.
    """

    kind = "table"
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    kinds: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """A drawing with its caption.

    Attributes:
        drawing: The drawing.
        caption: What to see in it.
    """

    kind = "figure"
    drawing: Drawing
    caption: Any


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text; a note is set smaller."""

    kind = "paragraph"
    text: Any
    note: bool = False


@dataclass(frozen=True)
class Facts:
    """Pairs of term and value."""

    kind = "facts"
    pairs: Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Code:
    """Lines to copy."""

    kind = "code"
    caption: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Row:
    """Blocks that stand side by side where there is room."""

    kind = "row"
    blocks: Sequence[Any]


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading.

    Attributes:
        id: Name that links point to.
        title: The heading.
        blocks: What stands in it.
    """

    id: str
    title: str
    blocks: Sequence[Any]


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        title: Title of the document.
        verdict: The answer, in a sentence.
        tone: "good", "open" or "bad": colour of the verdict.
        reason: Why, in a sentence.
        facts: A few numbers under the verdict.
        sections: The parts.
        date: Date to print, or None.
    """

    title: str
    verdict: Any
    tone: str
    reason: Any
    facts: Sequence[tuple[str, Any]]
    sections: Sequence[Section]
    styles: StyleSheet
    date: str | None = None
    notes: Sequence[Any] = field(default_factory=list)


def render(page: Page) -> str:
    """Return the page as HTML, with a content security policy that allows its own style and script alone."""
    style = _template("style.css") + page.styles.text()
    script = _template("sort.js")
    policy = (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; script-src 'sha256-{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    template = _environment().get_template("report.html")
    return template.render(page=page, policy=Markup(policy), style=Markup(style), script=Markup(script)) + "\n"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: safe(value) if type(value) is str else value,
    )


def _template(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
