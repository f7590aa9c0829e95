"""Pictures of reports: plots as SVG, in the colours of the page."""

from __future__ import annotations

import base64
import io
import threading
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 4.8  # inches
COLOURS = {
    "ink": "#1b2027",
    "muted": "#545e6a",
    "line": "#d6dce3",
    "surface": "#ffffff",
    "raised": "#f4f6f8",
    "accent": "#0b5fb0",
    "known": "#66717d",
    "warn": "#9a4c00",
}
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sopr_fast",
    "font.size": 8.5,
    "axes.labelsize": 8.5,
    "text.color": COLOURS["ink"],
    "text.parse_math": False,
    "axes.edgecolor": COLOURS["line"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": COLOURS["line"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["line"],
    "ytick.color": COLOURS["line"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.labelcolor": COLOURS["ink"],
    "ytick.major.size": 0.0,
}
_lock = threading.Lock()  # settings of matplotlib are those of all threads


def draw(fill: Callable[[Axes], Any]) -> str:
    """Return a figure, as high as the names at its side need, as data URI, whatever the settings of matplotlib are."""
    import matplotlib
    from matplotlib.figure import Figure

    with _lock, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's browser has other fonts
        figure = Figure(figsize=(_WIDTH, 1), dpi=72, layout="constrained")
        fill(axes := figure.add_subplot())
        figure.set_figheight(height_of(len(axes.get_yticks())))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    content = base64.b64encode(buffer.getvalue().encode()).decode()
    return f"data:image/svg+xml;base64,{content}"


def height_of(rows: int) -> float:
    """Return the height in inches of a plot of so many rows."""
    return 0.9 + 0.19 * rows
