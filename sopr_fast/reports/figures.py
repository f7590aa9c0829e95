"""Figures of reports: few lines, labelled directly, in the colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .svg import ACCENT, INK, KNOWN, MUTED, SURFACE, WARN, Drawing, StyleSheet, draw
from .text import chance, label, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

_WIDTH = 4.6  # inches: text stays legible on a phone
MOST_ROWS = 30


@dataclass(frozen=True)
class Dot:
    """A value with an interval, one row of a figure.

    Attributes:
        name: Label of the row.
        value: The value.
        low: Lower end of the interval; NaN for none.
        high: Upper end.
        doubtful: Whether the dot is hollow.
        text: Text on the right of the row.
    """

    name: str
    value: float
    low: float = float("nan")
    high: float = float("nan")
    doubtful: bool = False
    text: str = ""


def intervals(
    dots: Sequence[Dot],
    styles: StyleSheet,
    *,
    title: str,
    axis: str,
    rug: np.ndarray | None = None,
    rug_label: str = "",
    mark: tuple[float, str] | None = None,
    limits: tuple[float, float] | None = None,
) -> Drawing:
    """Plot values with intervals, the first on top.

    Args:
        dots: The rows.
        styles: Style sheet of the page.
        title: What the figure is.
        axis: Label of the axis.
        rug: Values to show as ticks under the rows.
        rug_label: What they are.
        mark: Value to mark by a line, and its label.
        limits: Ends of the axis.
    """
    count = len(dots)
    rows = count + (1.0 if rug is not None else 0.0)

    def plot(figure: Figure) -> None:
        ax = figure.add_subplot()
        for place, dot in enumerate(dots):
            colour = WARN if dot.doubtful else ACCENT
            if np.isfinite(dot.low) and np.isfinite(dot.high):
                ax.hlines(place, dot.low, dot.high, color=colour, linewidth=1.6)
            face = SURFACE if dot.doubtful else colour
            ax.plot(dot.value, place, "o", color=colour, markerfacecolor=face, markersize=5.5, markeredgewidth=1.4)
        ticks, names = list(range(count)), [label(dot.name) for dot in dots]
        if rug is not None:
            ax.vlines(rug, count + 0.2, count + 0.7, color=KNOWN, linewidth=0.9)
            ticks.append(count + 0.45)  # type: ignore[arg-type]
            names.append(rug_label)
        ax.set_yticks(ticks, names)
        if mark is not None:
            ax.axvline(mark[0], color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), zorder=0)
            ax.annotate(
                mark[1], (mark[0], 1), (0, 3), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha="center", va="bottom", color=MUTED,
            )  # fmt: skip
        if any(dot.text for dot in dots):
            right = ax.twinx()
            right.set_ylim(rows - 0.4, -0.7)
            right.set_yticks(range(count), [dot.text for dot in dots])
            right.tick_params(axis="y", labelcolor=MUTED, length=0)
            right.spines[:].set_visible(False)
        ax.set_ylim(rows - 0.4, -0.7)
        if limits is not None:
            ax.set_xlim(*limits)
        ax.set_xlabel(axis)
        ax.spines["left"].set_visible(False)
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        _few_ticks(ax)

    return draw(plot, (_WIDTH, 0.75 + 0.23 * rows + (0.15 if mark else 0)), title, styles)


def probabilities(names: Sequence[str], values: np.ndarray, styles: StyleSheet, *, title: str, axis: str) -> Drawing:
    """Plot probabilities as lines from one half, with the number beside each."""

    def plot(figure: Figure) -> None:
        ax = figure.add_subplot()
        for place, value in enumerate(values):
            colour = ACCENT if value >= 0.5 else KNOWN
            ax.hlines(place, 0.5, value, color=colour, linewidth=2.2)
            ax.plot(value, place, "o", color=colour, markersize=5.5)
            inside = value >= 0.5
            ax.annotate(
                chance(value), (value, place), (7 if inside else -7, 0), textcoords="offset points",
                ha="left" if inside else "right", va="center", color=INK,
            )  # fmt: skip
        ax.axvline(0.5, color=MUTED, linewidth=0.9, zorder=0)
        ax.set_yticks(range(len(names)), [label(name) for name in names])
        ax.set_ylim(len(names) - 0.4, -0.7)
        ax.set_xlim(-0.26, 1.26)
        ax.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        ax.set_xlabel(axis)
        ax.spines["left"].set_visible(False)

    return draw(plot, (_WIDTH, 0.7 + 0.23 * len(names)), title, styles)


def methods(
    kinds: dict[str, dict[str, tuple[float, float, float]]], styles: StyleSheet, *, title: str, axis: str
) -> Drawing:
    """Plot a measure of every method, one row each, with one dot for each kind of folds.

    Args:
        kinds: Kind -> method -> mean, lower and upper end.
        styles: Style sheet of the page.
        title: What the figure is.
        axis: Label of the axis.
    """
    labels = list(next(iter(kinds.values())))

    def plot(figure: Figure) -> None:
        ax = figure.add_subplot()
        for which, measures in enumerate(kinds.values()):
            shift = (which - (len(kinds) - 1) / 2) * 0.36
            colour, face = (ACCENT, ACCENT) if which == 0 else (WARN, SURFACE)
            for row, method in enumerate(labels):
                mean, low, high = measures[method]
                if np.isfinite(low) and np.isfinite(high):
                    ax.hlines(row + shift, low, high, color=colour, linewidth=1.6)
                ax.plot(mean, row + shift, "o", color=colour, markerfacecolor=face, markersize=5.5, markeredgewidth=1.4)
        _write_kinds(ax, list(kinds))
        ax.axvline(0, color=MUTED, linewidth=0.9, zorder=0)
        ax.set_yticks(range(len(labels)), [label(method) for method in labels])
        ax.set_ylim(len(labels) - 0.4, -0.7)
        ax.set_xlim(right=1.03)
        ax.set_xlabel(axis)
        ax.spines["left"].set_visible(False)
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        _few_ticks(ax)

    return draw(plot, (_WIDTH, 0.85 + 0.4 * len(labels)), title, styles)


def calibration(
    parts: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], styles: StyleSheet, *, title: str
) -> Drawing:
    """Plot measured returns of policies that were left out over their predictions, with intervals.

    Args:
        parts: Kind -> (n,) predicted returns, (n,) half widths of intervals, (n,) measured returns.
        styles: Style sheet of the page.
        title: What the figure is.
    """

    def plot(figure: Figure) -> None:
        ax = figure.add_subplot()
        everything = np.concatenate([np.concatenate([x, y]) for x, _, y in parts.values()])
        ends = everything.min(), everything.max()
        margin = 0.06 * ((ends[1] - ends[0]) or 1)
        low, high = ends[0] - margin, ends[1] + margin
        ax.plot([low, high], [low, high], color=MUTED, linewidth=0.9)
        ax.annotate("as predicted", (high, high), (-14, -8), textcoords="offset points", ha="right", color=MUTED)
        for which, (predicted, half, returns) in enumerate(parts.values()):
            colour, face = (ACCENT, ACCENT) if which == 0 else (WARN, SURFACE)
            ax.hlines(returns, predicted - half, predicted + half, color=colour, linewidth=0.7, alpha=0.3)
            ax.plot(predicted, returns, "o", color=colour, markerfacecolor=face, markersize=4, markeredgewidth=1.2)
        _write_kinds(ax, list(parts))
        ax.set(xlim=(low, high), ylim=(low, high), xlabel="predicted return (80 % interval)", ylabel="measured return")
        ax.set_aspect("equal")
        _few_ticks(ax)
        ax.yaxis.set_major_locator(_locator(5))
        ax.yaxis.set_major_formatter(_plain_numbers())

    return draw(plot, (_WIDTH, 4.3), title, styles)


def coverage(levels: np.ndarray, parts: dict[str, np.ndarray], styles: StyleSheet, *, title: str) -> Drawing:
    """Plot the share of left-out policies inside their intervals over the nominal share.

    Args:
        levels: (L,) nominal levels.
        parts: Kind -> (L,) shares.
        styles: Style sheet of the page.
        title: What the figure is.
    """

    def plot(figure: Figure) -> None:
        ax = figure.add_subplot()
        ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.9)
        ax.annotate("as announced", (0.03, 0.03), (10, 0), textcoords="offset points", color=MUTED)
        for which, shares in enumerate(parts.values()):
            colour, face = (ACCENT, ACCENT) if which == 0 else (WARN, SURFACE)
            ax.plot(levels, shares, "o-", color=colour, linewidth=1.4, markerfacecolor=face, markersize=4)
        _write_kinds(ax, list(parts))
        ax.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="nominal level", ylabel="share of left-out policies inside")
        ax.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        ax.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
        ax.set_aspect("equal")

    return draw(plot, (_WIDTH, 4.3), title, styles)


def policy_map(
    places: np.ndarray,
    known: np.ndarray,
    foreign: np.ndarray,
    numbers: Sequence[int],
    groups: Sequence[str],
    styles: StyleSheet,
    *,
    title: str,
) -> Drawing:
    """Plot policies in the plane: known ones as small dots, candidates as numbers.

    Args:
        places: (P, 2) places.
        known: (P,) bool.
        foreign: (P,) bool.
        numbers: Number of each candidate; 0 for known policies.
        groups: Group of each known policy, to be written where it stands; "" for none.
        styles: Style sheet of the page.
        title: What the figure is.
    """

    def plot(figure: Figure) -> None:
        ax = figure.add_subplot()
        ax.set_aspect("equal", adjustable="datalim")
        ax.plot(*places[known].T, "o", color=KNOWN, markersize=4, alpha=0.8, markeredgewidth=0)
        for i in map(int, np.flatnonzero(~known)):
            colour = WARN if foreign[i] else ACCENT
            ax.plot(*places[i], "o", color=colour, markerfacecolor=SURFACE if foreign[i] else colour, markersize=5.5)
        ax.margins(0.09)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(False)
        figure.draw_without_rendering()  # which settles where the dots lie on the page
        dots = ax.transData.transform(places)
        taken = list(dots)
        for group in dict.fromkeys(group for group, is_known in zip(groups, known, strict=True) if is_known and group):
            members = np.array([g == group for g in groups]) & known
            rows = np.flatnonzero(members)
            middle = rows[np.linalg.norm(dots[rows] - np.median(dots[rows], axis=0), axis=1).argmin()]
            place = _free_place(dots[middle], taken, (22, 30, 38))
            _annotate_near(ax, label(group, 16), places[middle], place - dots[middle], color=MUTED)
            taken += [place + np.array([dx, 0]) for dx in (-18, -9, 0, 9, 18)]
        for i in sorted(map(int, np.flatnonzero(~known)), key=lambda i: numbers[i]):
            place = _free_place(dots[i], taken)
            taken.append(place)
            colour = WARN if foreign[i] else ACCENT
            _annotate_near(ax, str(numbers[i]), places[i], place - dots[i], color=colour, fontweight="bold")

    return draw(plot, (_WIDTH, 3.9), title, styles)


def values_and_returns(
    panels: Sequence[tuple[str, np.ndarray, np.ndarray, float]], styles: StyleSheet, *, title: str, axis: str
) -> Drawing:
    """Plot returns over the values of several methods, one small plot each.

    Args:
        panels: Method, (M,) values, (M,) returns, rank correlation.
        styles: Style sheet of the page.
        title: What the figure is.
        axis: Label of the vertical axis.
    """
    across = min(2 if len(panels) in (2, 4) else 3, len(panels))
    down = -(-len(panels) // across)

    def plot(figure: Figure) -> None:
        axes = figure.subplots(down, across, squeeze=False, sharey=True).ravel()
        for ax, (name, values, returns, correlation) in zip(axes, panels, strict=False):
            finite = np.isfinite(values)
            ax.plot(values[finite], returns[finite], "o", color=ACCENT, markersize=3, alpha=0.75, markeredgewidth=0)
            ax.set_title(
                f"{label(name, 24 if across < 3 else 13)}\n{number(correlation)}", fontsize=9, color=INK, loc="left"
            )
            ax.set_xticks([])
            ax.yaxis.set_major_locator(_locator(3))
            ax.yaxis.set_major_formatter(_plain_numbers())
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        figure.supylabel(axis, fontsize=9, color=MUTED)

    return draw(plot, (_WIDTH, 0.4 + (1.6 if across > 2 else 1.9) * down), title, styles)


def curve(values: np.ndarray, styles: StyleSheet, *, title: str, axis: str, mark: tuple[int, str] | None) -> Drawing:
    """Plot numbers over steps of training."""

    def plot(figure: Figure) -> None:
        ax = figure.add_subplot()
        ax.plot(np.arange(1, len(values) + 1), values, color=ACCENT, linewidth=1.4)
        if mark is not None:
            ax.plot(mark[0], values[mark[0] - 1], "o", color=ACCENT, markersize=5.5)
            ax.annotate(
                mark[1], (mark[0], values[mark[0] - 1]), (0, -9), textcoords="offset points",
                ha="right" if mark[0] > len(values) / 2 else "left", va="top", color=INK,
            )  # fmt: skip
        ax.set(xlabel="step of training", ylabel=axis)
        _few_ticks(ax)

    return draw(plot, (_WIDTH, 2.6), title, styles)


def _annotate_near(ax: Axes, text: str, point: np.ndarray, offset: Any, **style: Any) -> None:
    """Write beside a point, without making room for it."""
    note = ax.annotate(text, tuple(point), tuple(offset), textcoords="offset points", ha="center", va="center", **style)
    note.set_in_layout(False)


def _write_kinds(ax: Axes, kinds: Sequence[str]) -> None:
    """Write above the axes what filled and hollow dots are."""
    for which, kind in enumerate(kinds):
        ax.annotate(
            f"{'●○'[which]} {kind}", (which, 1), (0, 5), xycoords="axes fraction", textcoords="offset points",
            ha="right" if which else "left", va="bottom", color=WARN if which else ACCENT,
        )  # fmt: skip


def _free_place(point: np.ndarray, taken: list[np.ndarray], radii: Sequence[float] = (9, 13)) -> np.ndarray:
    """Return a place for a label around a point, the one farthest from what is there already, the nearest preferred."""
    offsets = [(r * np.cos(a), r * np.sin(a)) for r in radii for a in np.arange(0, 2 * np.pi, np.pi / 4)]
    spots = point + np.array(offsets)
    others = np.array([other for other in taken if not np.array_equal(other, point)]).reshape(-1, 2)
    room = [float(np.linalg.norm(others - spot, axis=1).min(initial=40)) for spot in spots]
    best = max(room[:8])
    if best >= 8:
        return spots[next(i for i in range(8) if room[i] >= min(best, 12))]
    return spots[int(np.argmax(room))]


def _few_ticks(ax: Axes) -> None:
    ax.xaxis.set_major_locator(_locator(5))
    ax.xaxis.set_major_formatter(_plain_numbers())
    ax.tick_params(axis="x", labelcolor=MUTED)


def _plain_numbers() -> FuncFormatter:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.6g}".replace("-", "−"))


def _locator(bins: int) -> MaxNLocator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(bins, steps=[1, 2, 5, 10])
