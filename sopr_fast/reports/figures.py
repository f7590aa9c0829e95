"""Figures of reports: matplotlib's own SVG, once for light and once for dark pages."""

from __future__ import annotations

import base64
import io
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..runtime.plotting import figure_class
from ..runtime.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 20
_WIDTH, _ROW = 5.4, 0.2  # inches
_LABEL, _SHORT_LABEL = 34, 28  # characters of names

LIGHT = {
    "ink": "#1b2027",
    "muted": "#545e6a",
    "line": "#d6dce3",
    "surface": "#ffffff",
    "raised": "#f4f6f8",
    "accent": "#0b5fb0",
    "known": "#66717d",
    "warn": "#9a4c00",
    "good": "#166b3c",
    "bad": "#a4262c",
}
DARK = {
    "ink": "#e7ebef",
    "muted": "#a5b0bb",
    "line": "#343c45",
    "surface": "#13171b",
    "raised": "#1c2228",
    "accent": "#74b5ff",
    "known": "#8f9ba7",
    "warn": "#f2a65e",
    "good": "#6fd19a",
    "bad": "#ff9a94",
}
INK, MUTED, LINE, SURFACE = (LIGHT[name] for name in ("ink", "muted", "line", "surface"))
ACCENT, KNOWN, WARN = (LIGHT[name] for name in ("accent", "known", "warn"))

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
    """A figure as data URIs.

    Attributes:
        light: SVG for a light page.
        dark: SVG for a dark page.
        caption: What to see in it.
    """

    light: str
    dark: str
    caption: str


def draw(plot: Callable[[Axes], None], height: float, caption: str) -> Picture:
    """Draw a figure as reports do, whatever the user's settings of matplotlib are; one thread at a time.

    Args:
        plot: Function that plots on axes.
        height: Inches.
        caption: What to see in it.
    """
    figure_type = figure_class()
    import matplotlib

    with _lock, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's browser has other fonts
        figure = figure_type(figsize=(_WIDTH, height), dpi=72, layout="constrained")
        plot(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    dark = dict(zip(LIGHT.values(), DARK.values(), strict=True))
    in_dark = re.sub("|".join(LIGHT.values()), lambda match: dark[match[0]], svg)
    return Picture(_uri(svg), _uri(in_dark), caption)


def _uri(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


_COLOURS = {"candidate": ACCENT, "known": KNOWN, "foreign": WARN}


def intervals(
    names: Sequence[str],
    values: np.ndarray,
    ends: np.ndarray,
    kinds: Sequence[str],
    *,
    axis: str,
    caption: str,
    known: np.ndarray | None = None,
    mark: tuple[float, str] | None = None,
) -> Picture:
    """Plot values with intervals, the first on top.

    Args:
        names: n names.
        values: (n,) values.
        ends: (n, 2) lower and upper ends of their intervals; NaN for none.
        kinds: n times "candidate", "known" or "foreign".
        axis: Label of the axis.
        caption: What to see in it.
        known: Values of known policies to show as ticks below the rows.
        mark: Value to mark by a line, and its label.
    """
    ticks = 0 if known is None or not len(known) else 1

    def plot(ax: Axes) -> None:
        for place, (value, kind) in enumerate(zip(values, kinds, strict=True)):
            colour = _COLOURS[kind]
            ax.hlines(place, *ends[place], color=colour, linewidth=1.6)
            face = SURFACE if kind == "foreign" else colour
            ax.plot(value, place, "o", color=colour, markerfacecolor=face, markersize=5, markeredgewidth=1.4)
        places, labels = list(range(len(names))), [printable(name, _LABEL) for name in names]
        if ticks and known is not None:
            ax.vlines(known, len(names) - 0.3, len(names) + 0.3, color=KNOWN, linewidth=0.9)
            places.append(len(names))
            labels.append(f"{len(known)} known policies")
        if mark is not None:
            ax.axvline(mark[0], color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), zorder=0)
            ax.annotate(
                mark[1], (mark[0], 1), (0, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha="center", color=MUTED,
            )  # fmt: skip
        ax.set_yticks(places, labels)
        ax.set_ylim(len(names) - 0.4 + ticks, -0.6)
        ax.set_xlabel(axis)
        ax.spines["left"].set_visible(False)
        ax.grid(axis="x")
        ax.locator_params(axis="x", nbins=6)

    return draw(plot, 0.6 + _ROW * (len(names) + ticks) + 0.15 * (mark is not None), caption)


def scatter(
    x: np.ndarray,
    y: np.ndarray,
    *,
    axes: tuple[str, str],
    caption: str,
    half: np.ndarray | None = None,
    diagonal: bool = False,
) -> Picture:
    """Plot returns over predictions or scores.

    Args:
        x: (n,) values to the right.
        y: (n,) returns.
        axes: Labels of both axes.
        caption: What to see in it.
        half: (n,) half widths of intervals of `x`; points outside of them are hollow. None for none.
        diagonal: Draw the line of equal values.
    """

    def plot(ax: Axes) -> None:
        outside = np.zeros(len(x), bool) if half is None else np.abs(x - y) > half
        if diagonal:
            ax.axline((float(y.mean()), float(y.mean())), slope=1, color=MUTED, linewidth=0.9)
        if half is not None:
            for where, colour in ((~outside, ACCENT), (outside, WARN)):
                ax.hlines(y[where], (x - half)[where], (x + half)[where], color=colour, linewidth=0.8, alpha=0.5)
        ax.plot(x[~outside], y[~outside], "o", color=ACCENT, markersize=4)
        ax.plot(x[outside], y[outside], "o", color=WARN, markerfacecolor=SURFACE, markersize=4, markeredgewidth=1.3)
        ax.set(xlabel=axes[0], ylabel=axes[1])
        ax.grid()
        ax.locator_params(nbins=6)

    return draw(plot, 3.2, caption)


def policy_map(distances: np.ndarray, kinds: Sequence[str], names: Sequence[str], *, caption: str) -> Picture | None:
    """Map policies: those that act alike stand close together. None for fewer than three with known distances.

    Args:
        distances: (P, P) action distances; NaN if unknown.
        kinds: "candidate", "known" or "foreign".
        names: Names to write; "" for none.
        caption: What to see in it.
    """
    kept = np.isfinite(distances).sum(1) > 1
    kept &= np.isfinite(distances[:, kept]).all(1)
    if kept.sum() < 3:
        return None
    places, shown = classical_scaling(distances[np.ix_(kept, kept)])
    kinds, names = ([each[i] for i in np.flatnonzero(kept).tolist()] for each in (kinds, names))

    def plot(ax: Axes) -> None:
        ax.set_aspect("equal", adjustable="datalim")
        for kind, colour in _COLOURS.items():
            own = places[[one == kind for one in kinds]]
            face = SURFACE if kind == "foreign" else colour
            ax.plot(*own.T, "o", color=colour, markerfacecolor=face, markersize=4 if kind == "known" else 5.5)
        ax.margins(0.3, 0.12)
        ax.tick_params(labelleft=False, labelbottom=False, length=0)
        ax.spines[:].set_visible(True)
        ax.grid()
        ax.figure.draw_without_rendering()  # type: ignore[union-attr]  # settles where the dots lie on the page
        dots = ax.transData.transform(places)
        labels, middle = np.zeros((0, 2)), float(ax.transAxes.transform((0.5, 0.5))[0])
        for i, name in enumerate(names):
            if name:
                offset = _free_offset(dots[i], dots, labels, middle)
                labels = np.vstack([labels, dots[i] + offset + [np.sign(offset[0]) * 50, 0]])
                ax.annotate(
                    printable(name, _SHORT_LABEL), places[i], tuple(offset), textcoords="offset points",
                    ha="left" if offset[0] > 0 else "right", va="center",
                    color=_COLOURS[kinds[i]],
                ).set_in_layout(False)  # fmt: skip

    return draw(plot, 3.6, f"{caption} The plane shows {round(100 * shown)} % of the variance of actions.")


def _free_offset(point: np.ndarray, dots: np.ndarray, labels: np.ndarray, middle: float) -> np.ndarray:
    """Return the offset of a label from a point, toward the middle, that hides the fewest labels (n, 2) and dots."""
    side = 1 if point[0] < middle else -1
    offsets = np.array([(6 * side, y) for y in (0, 9, -9, 18, -18, 27, -27)], float)

    def hidden(others: np.ndarray, start: np.ndarray) -> int:
        right, up = ((others - start) * np.array([side, 1])).T
        return int(((np.abs(right - 50) < 60) & (np.abs(up) < 9)).sum())

    costs = [100 * hidden(labels, point + offset) + hidden(dots, point + offset) for offset in offsets]
    return offsets[int(np.argmin(costs))]


def classical_scaling(distances: np.ndarray) -> tuple[np.ndarray, float]:
    """Return places by classical multidimensional scaling.

    An action distance is a mean of squared differences, so it is the square of a Euclidean distance.

    Args:
        distances: (P, P) action distances, finite.

    Returns:
        (P, 2) places, centred, the sign of each axis such that its largest place is positive; and the share of the
        variance that the two axes show, 1 if all policies act alike.
    """
    centred = distances - distances.mean(0)
    products = -0.5 * (centred - centred.mean(1, keepdims=True))
    values, vectors = np.linalg.eigh((products + products.T) / 2)
    values = np.maximum(values[::-1], 0)
    places = vectors[:, ::-1][:, :2] * np.sqrt(values[:2])
    largest = np.abs(places).argmax(0)
    places *= np.where(places[largest, [0, 1]] < 0, -1, 1)
    total = values.sum()
    return places, float(values[:2].sum() / total) if total > 0 else 1.0
