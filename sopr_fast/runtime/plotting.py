"""matplotlib, if it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .extras import library
from .process import in_notebook

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure


def figure_class() -> type[matplotlib.figure.Figure]:
    """Return matplotlib's figure, which opens no window.

    Raises:
        ImportError: matplotlib is not installed.
    """
    return library("matplotlib.figure", "plot", "plot").Figure


def new_axes(width: float, height: float) -> matplotlib.axes.Axes:
    """Return the axes of a new figure, which a notebook shows and which opens no window elsewhere.

    Args:
        width: Inches.
        height: Inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    make = figure_class()
    if in_notebook():
        from matplotlib import pyplot

        return pyplot.figure(figsize=(width, height), layout="constrained").add_subplot()
    return make(figsize=(width, height), layout="constrained").add_subplot()
