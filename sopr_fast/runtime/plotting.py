"""matplotlib, where it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import matplotlib.figure


def figure_class() -> type[matplotlib.figure.Figure]:
    """Return matplotlib's figure, which opens no window.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install 'sopr_fast[plot]'") from error
    return Figure
