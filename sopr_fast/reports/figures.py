"""Figures of reports: matplotlib's own SVG."""

from __future__ import annotations

import base64
import io
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS = 20  # of policies in a figure
_WIDTH = 4.8  # inches

_COLOURS = {  # on light and on dark pages
    "ink": ("#1b2027", "#e7ebef"),
    "muted": ("#545e6a", "#a5b0bb"),
    "line": ("#d6dce3", "#343c45"),
    "surface": ("#ffffff", "#13171b"),
    "raised": ("#f4f6f8", "#1c2228"),
    "accent": ("#0b5fb0", "#74b5ff"),
    "known": ("#66717d", "#8f9ba7"),
    "warn": ("#9a4c00", "#f2a65e"),
    "good": ("#166b3c", "#6fd19a"),
    "bad": ("#a4262c", "#ff9a94"),
}
LIGHT, DARK = ({name: pair[page] for name, pair in _COLOURS.items()} for page in range(2))
INK, MUTED, LINE, SURFACE = (LIGHT[name] for name in ("ink", "muted", "line", "surface"))
ACCENT, WARN = LIGHT["accent"], LIGHT["warn"]

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sopr_fast",
    "font.size": 8.5,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.use_locale": False,
    "axes.formatter.limits": (-6, 7),
    "figure.facecolor": "none",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0.0,
}
_lock = threading.Lock()  # settings of matplotlib are those of all threads


@dataclass(frozen=True)
class Picture:
    """A figure as data URI of SVG for light pages, whose style sheet inverts it on dark ones; and what to see in it."""

    uri: str
    caption: str


def plot(fill: Callable[[Axes], Any], caption: str, *, height: float | None = None) -> Picture:
    """Plot a figure whatever the user's settings of matplotlib are; one thread at a time.

    It is `height` inches high; None for as high as the names at its side need.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with _lock, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's browser has other fonts
        figure = Figure(figsize=(_WIDTH, height or 1), dpi=72, layout="constrained")
        fill(axes := figure.add_subplot())
        if height is None:
            figure.set_figheight(height_of(len(axes.get_yticks())))
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    content = base64.b64encode(buffer.getvalue().encode()).decode()
    return Picture(f"data:image/svg+xml;base64,{content}", caption)


def height_of(rows: int) -> float:
    """Return the height in inches of a plot of so many rows."""
    return 0.9 + 0.19 * rows


def scatter(
    x: np.ndarray,
    y: np.ndarray,
    *,
    axes: tuple[str, str],
    caption: str,
    half: np.ndarray | None = None,
) -> Picture:
    """Plot returns `y` over values `x` (n,), with labels of both axes.

    `half` are half widths of intervals of predictions `x` of `y`; points outside of them are hollow.
    """

    def fill(ax: Axes) -> None:
        outside = np.zeros(len(x), bool) if half is None else np.abs(x - y) > half
        if half is not None:
            ax.axline((float(y.mean()), float(y.mean())), slope=1, color=MUTED, linewidth=0.9)
            for where, colour in ((~outside, ACCENT), (outside, WARN)):
                ax.hlines(y[where], (x - half)[where], (x + half)[where], color=colour, linewidth=0.8, alpha=0.5)
        ax.plot(x[~outside], y[~outside], "o", color=ACCENT, markersize=4)
        ax.plot(x[outside], y[outside], "o", color=WARN, markerfacecolor=SURFACE, markersize=4, markeredgewidth=1.3)
        ax.set(xlabel=axes[0], ylabel=axes[1])
        ax.grid()
        ax.locator_params(nbins=6)

    return plot(fill, caption, height=2.9)
