"""The page of a report: names made safe, numbers with few digits, and one HTML file with a content security policy."""

from __future__ import annotations

import base64
import hashlib
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from .._version import __version__
from ..results.numbers import number
from ..runtime.text import printable
from .figures import DARK, LIGHT

_LONGEST = 200


class Name(str):
    """Name of a policy, group or method: untrusted text, set apart from the direction of the text around it."""

    def __html__(self) -> Markup:
        return Markup("<bdi>{}</bdi>").format(printable(str(self), _LONGEST))


def safe(text: str) -> str:
    """Return text with invisible characters escaped, and numbers kept on one line with their percent sign."""
    return printable(text).replace(" %", "\u00a0%")


def plain(value: object) -> str:
    """Return a setting as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Column:
    """A column of numbers: its heading, and for each row the text and the number by which rows are sorted."""

    head: str
    texts: Sequence[str]
    keys: Sequence[float]


def column(head: str, values: Sequence[float] | np.ndarray, show: Callable[[float], str] = number) -> Column:
    """Return a column of numbers that a function shows."""
    keys = [float(value) for value in values]
    return Column(head, [show(key) for key in keys], keys)


@dataclass(frozen=True)
class Table:
    """A table of policies or methods, one a row."""

    caption: str
    head: str  # of the names
    names: list[Name]
    classes: list[str]  # of each row in the style sheet, such as "known" or "foreign chosen"
    columns: list[Column]
    remarks: list[str] = field(default_factory=list)  # about each row, or none
    copies: list[list[Name]] = field(default_factory=list)  # further names of each row, or none


def render(about: str, command: str, *, settings: dict[str, Any], again: str = "", **page: Any) -> str:
    """Return a page as HTML, which may only use its own style, script and images.

    `command` makes it again, `again` is to be run after what is to do now. `page` has a `headline` with its `tone`
    ("good", "open", "bad" or "" for its colour), sentences (`reasons`, `now`, `notes`, `legend`, `evidence`), `title`
    of the `tables`, and figures (`main`, `pictures`).
    """

    def root(colours: dict[str, str]) -> str:
        return ":root {" + "".join(f" --{name}: {colour};" for name, colour in colours.items()) + " }\n"

    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{root(DARK)}}}\n"  # paper is light
    style = ":root { color-scheme: light dark; }\n" + root(LIGHT) + dark + _template("style.css")
    script = _template("page.js")
    policy = (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; script-src 'sha256-{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    fixed = {"policy": Markup(policy), "style": Markup(style), "script": Markup(script)}
    template = _environment().get_template("page.html")
    return template.render(settings=_rows(settings), about=about, command=command, again=again, **page, **fixed) + "\n"


def _rows(settings: dict[str, Any]) -> list[tuple[str, str]]:
    methods = settings.get("methods") or {}
    rows = {name.replace("_", " "): value for name, value in settings.items() if name != "methods"} | methods
    rows |= {"sopr_fast": __version__, "Python": platform.python_version(), "torch": torch.__version__}
    rows |= {"numpy": np.__version__, "machine": f"{platform.system()} {platform.machine()}"}
    return [(name, plain(value)) for name, value in rows.items() if value is not None]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: safe(value) if type(value) is str else value,
    )
    environment.tests["finite"] = math.isfinite
    return environment


def _template(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
