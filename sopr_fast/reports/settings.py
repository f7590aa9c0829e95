"""How a report is made again: settings, versions, and the command or call."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .._version import __version__
from .page import Cell, Code, Column, Facts, Section, Table
from .parts import name_cell
from .text import Name

_TERMS = {
    "rows": "transitions to use, at most",
    "states": "states used",
    "has_rewards": "log holds rewards",
    "folds": "random folds",
    "action_count": "number of actions",
    "source": "source of the subsets",
}


def settings_section(settings: dict[str, Any], command: str | None, call: Sequence[str]) -> Section:
    """Return the section of settings, versions and the command.

    Args:
        settings: Values by name; a mapping of methods is listed by itself.
        command: Command that makes the report again, or None.
        call: Lines that make it again where there is no command.
    """
    methods = settings.get("methods", {})
    pairs: list[tuple[str, Any]] = [
        (_TERMS.get(name, name.replace("_", " ")), _plain(value))
        for name, value in settings.items()
        if name != "methods" and value is not None
    ]
    versions = [
        ("sopr_fast", __version__),
        ("Python", platform.python_version()),
        ("torch", torch.__version__),
        ("numpy", np.__version__),
        ("machine", f"{platform.system()} {platform.machine()}"),
    ]
    blocks: list[Any] = [Facts([*pairs, *versions])]
    if methods:
        rows = [[name_cell(name), Cell(_shorten(text), text)] for name, text in methods.items()]
        heads = [Column("method", numeric=False), Column("options", numeric=False)]
        blocks.append(Table("Methods and their options", heads, rows))
    caption = f"The {'command' if command else 'call'} that makes this report again:"
    blocks.append(Code(caption, [command] if command else call))
    return Section("settings", "Settings", blocks)


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:g}"
    return Name(str(value))


def _shorten(text: str) -> str:
    return text if len(text) <= 600 else f"{text[:599]}…"
