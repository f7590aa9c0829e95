"""Names of a package that are imported when first used, so that `sopr-fast --help` does not wait for torch."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy_names(package: ModuleType) -> tuple[list[str], Callable[[str], Any]]:
    """Return `__all__` and `__getattr__` of a package, whose source imports its names for type checkers only."""
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    names = {
        alias.asname or alias.name: ("." * node.level + (node.module or alias.name), alias.name if node.module else "")
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
        place, attribute = names[name]
        module = import_module(place, package.__name__)
        value = getattr(module, attribute) if attribute else module
        setattr(package, name, value)
        return value

    return sorted(names), load
