"""The page of a report: names made safe, numbers with few digits, and one HTML file with a content security policy."""

from __future__ import annotations

import base64
import hashlib
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from .._version import __version__
from ..results.numbers import MISSING
from ..results.tables import Column
from ..runtime.text import printable
from .svg import COLOURS

_LONGEST = 200


def set_apart(name: str) -> Markup:
    """Return the name of a policy, group or method: untrusted text, apart from the direction of the text around it."""
    return Markup("<bdi>{}</bdi>").format(printable(name, _LONGEST))


def safe(text: str) -> str:
    """Return text with invisible characters escaped, and numbers kept on one line with their percent sign."""
    return printable(text).replace(" %", "\u00a0%")


@dataclass(frozen=True)
class Table:
    """A table of policies or methods, one a row, and the class of each row in the style sheet, as "known chosen"."""

    caption: str
    columns: Sequence[Column]
    classes: Sequence[str]

    @property
    def names(self) -> Column:
        """Names of the rows."""
        return next(column for column in self.columns if not len(column.keys))

    @property
    def numbers(self) -> list[Column]:
        """Columns of numbers that are not all missing."""
        return [column for column in self.columns if len(column.keys) and {*column.texts} - {"", MISSING}]

    @property
    def remarks(self) -> Sequence[str]:
        """Remarks on the rows; none if all are empty."""
        return next((column.texts for column in self.columns if not column.head and any(column.texts)), ())


def render(about: str, command: str, *, settings: dict[str, Any], **page: Any) -> str:
    """Return a page as HTML, which may only use its own style, script and images.

    `command` makes it again. `page` has a `headline` with its `tone` ("good", "open", "bad" or "" for its colour),
    sentences (`reasons`, `notes`, `legend`, `evidence`), `title` of the `table`, and figures (`main`, `pictures`).
    """
    colours = "".join(f" --{name}: {colour};" for name, colour in COLOURS.items())
    style = f":root {{ color-scheme: light;{colours} }}\n{_template('style.css')}"
    script = _template("page.js")
    policy = (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; script-src 'sha256-{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    fixed = {"policy": Markup(policy), "style": Markup(style), "script": Markup(script)}
    template = _environment().get_template("page.html")
    return template.render(settings=_rows(settings), about=about, command=command, **page, **fixed) + "\n"


def _rows(settings: dict[str, Any]) -> list[tuple[str, str]]:
    methods = settings.get("methods") or {}
    rows = {name.replace("_", " "): value for name, value in settings.items() if name != "methods"} | methods
    rows |= {"sopr_fast": __version__, "Python": platform.python_version(), "torch": torch.__version__}
    rows |= {"numpy": np.__version__, "machine": f"{platform.system()} {platform.machine()}"}
    shown = {name: value for name, value in rows.items() if value is not None}
    return [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in shown.items()]


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
    environment.filters["name"] = set_apart
    return environment


def _template(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
