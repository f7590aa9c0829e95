"""The page of a report: names made safe, and one HTML file with a content security policy."""

from __future__ import annotations

import base64
import hashlib
import platform
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from .._version import __version__
from ..runtime.text import printable
from .svg import COLOURS

_LONGEST = 200  # characters of a name


def safe(text: str) -> str:
    """Return text with invisible characters escaped, and numbers kept on one line with their percent sign."""
    return printable(text).replace(" %", "\u00a0%")


def render(about: str, command: str, *, settings: dict[str, Any], **page: Any) -> str:
    """Return a page as HTML, which may only use its own style and image, and runs no script.

    `command` makes it again. `page` has a `headline`, sentences (`reasons`, `notes`, `legend`, `evidence`), a
    `picture` with its `caption`, and the `title` and `columns` of a table.
    """
    colours = "".join(f" --{name}: {colour};" for name, colour in COLOURS.items())
    style = f":root {{ color-scheme: light;{colours} }}\n{_template('style.css')}"
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    fixed = {"policy": Markup(policy), "style": Markup(style)}
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
    environment.filters["short"] = lambda name: printable(name, _LONGEST)
    return environment


def _template(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")
