"""Libraries that only the optional dependencies of the package provide, such as matplotlib."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from .process import in_notebook

if TYPE_CHECKING:
    import matplotlib.axes


def library(module: str, extra: str, what: str = "reading it") -> ModuleType:
    """Import a module that the optional dependencies `extra` provide, or raise ImportError: `what` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module.split('.')[0]}: pip install '.[{extra}]' in a clone of sopr_fast, or "
            f"pip install 'sopr_fast[{extra}]'"
        ) from error


def new_axes(width: float, height: float) -> matplotlib.axes.Axes:
    """Return the axes of a new figure in inches, which a notebook shows and which opens no window elsewhere."""
    make = library("matplotlib.figure", "plot", "plot").Figure
    if in_notebook():
        from matplotlib import pyplot

        make = pyplot.figure
    return make(figsize=(width, height), layout="constrained").add_subplot()
