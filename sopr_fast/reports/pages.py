"""Templates of pages, filled and written as one HTML file with a content security policy."""

from __future__ import annotations

import base64
import hashlib
import math
import platform
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from .._version import __version__
from .figures import DARK, LIGHT
from .text import chance, number, plain, safe


def render(template: str, context: dict[str, Any], settings: dict[str, Any]) -> str:
    """Return a page as HTML, which may only use its own style, script and images.

    Args:
        template: Name of the template.
        context: Values for it.
        settings: Settings to print, with the versions; a mapping of methods becomes a row each.
    """
    style, script = _style(), _template("page.js")
    policy = (
        f"default-src 'none'; style-src 'sha256-{_hash(style)}'; script-src 'sha256-{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(template)
    fixed = {"policy": Markup(policy), "style": Markup(style), "script": Markup(script), "settings": _rows(settings)}
    return page.render(context | fixed) + "\n"


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
    environment.filters |= {"number": number, "chance": chance}
    environment.tests["finite"] = lambda value: value is not None and math.isfinite(value)
    return environment


def _style() -> str:
    """Return the style sheet; paper is light."""

    def root(colours: dict[str, str]) -> str:
        return ":root {" + "".join(f" --{name}: {colour};" for name, colour in colours.items()) + " }\n"

    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{root(DARK)}}}\n"
    return ":root { color-scheme: light dark; }\n" + root(LIGHT) + dark + _template("style.css")


def _template(name: str) -> str:
    return files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
