"""New axes of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .process import in_notebook

if TYPE_CHECKING:
    import matplotlib.axes


def new_axes(width: float, height: float) -> matplotlib.axes.Axes:
    """Return the axes of a new figure in inches, which a notebook shows and which opens no window elsewhere."""
    if in_notebook():
        from matplotlib.pyplot import figure as make
    else:
        from matplotlib.figure import Figure as make
    return make(figsize=(width, height), layout="constrained").add_subplot()
