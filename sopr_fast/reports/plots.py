"""Plots of results, by `Result.plot` and in reports, on axes of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from ..argument_types import ReturnsLike
from ..inputs.returns import check_returns
from ..results.numbers import without_outliers
from ..results.ranking import Ranking
from ..runtime.text import list_names, printable
from ..selection.evaluation import Evaluation
from ..selection.selection import Selection
from .svg import COLOURS, height_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 50
EIGHTY = 1.2816  # standard deviations of an 80 % interval
_LABEL = 34  # characters of names
_KINDS = {"candidate": COLOURS["accent"], "known": COLOURS["known"], "foreign": COLOURS["warn"]}


@singledispatch
def plot(result: Any) -> Axes:
    """Plot a result on axes; those of a new figure by default."""
    raise TypeError(f"no plot of a {type(result).__name__}")


@plot.register(Ranking)
def plot_ranking(
    ranking: Ranking, returns: ReturnsLike | None = None, ax: Axes | None = None, rows: int = MOST_ROWS
) -> Axes:
    """Plot scores with their standard errors, or true returns over scores.

    Without returns the best candidate is on top. With returns the legend names the foreign candidates, which are
    crossed rings. Foreign candidates have no error bar.
    """
    order, foreign = ranking.places, ranking.foreign
    if returns is not None:
        return _plot_returns(ranking, check_returns(returns, ranking.names), order, foreign, ax)
    shown = order[:rows]
    scores, errors = ranking.scores[shown, None], np.where(foreign, np.nan, ranking.standard_errors)[shown, None]
    kinds = np.where(foreign[shown], "foreign", "candidate").tolist()
    values = np.hstack([scores, scores - errors, scores + errors])
    ax = _intervals([ranking.names[i] for i in shown], values, kinds, ax=ax)
    ax.set(xlabel="score (± standard error)")
    return ax


@plot.register(Evaluation)
def plot_evaluation(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Plot the rank correlation of every method with its 90 % interval."""
    found = evaluation.measures
    values = np.array([each["spearman"] for each in found.values()])
    ax = _intervals([*found], values, ["candidate"] * len(found), ax=ax)
    ax.set(xlabel="rank correlation (90 % interval)")
    return ax


@plot.register(Selection)
def plot_selection(selection: Selection, ax: Axes | None = None, rows: int = MOST_ROWS) -> Axes:
    """Plot the highest returns with 80 % intervals: candidates, known policies, and those that cannot be ranked."""
    shown = selection.order[:rows]
    kinds = np.where(selection.known, "known", np.where(selection.rankable, "candidate", "foreign"))
    ax = _intervals([selection.names[i] for i in shown], selection.shown.T[shown], kinds[shown].tolist(), ax=ax)
    if selection.incumbent is not None:
        place = float(selection.shown[0][selection.measured.place(selection.incumbent)])
        ax.axvline(place, color=COLOURS["muted"], linewidth=0.9, linestyle=(0, (3, 2)), zorder=0, label="incumbent")
        _legend(ax)
    ax.set(xlabel=f"{selection.unit} (80 % interval)")
    return ax


def _intervals(names: Sequence[str], values: np.ndarray, kinds: Sequence[str], *, ax: Axes | None) -> Axes:
    """Plot n values with intervals, (n, 3), the first on top.

    An outlier is an arrow at the side, so that the others keep the room.
    """
    ax = _axes(ax, height_of(len(names)))
    labels = [printable(name, _LABEL) for name in names]
    for kind, colour in _KINDS.items():
        places = np.flatnonzero(np.array(kinds) == kind)
        if len(places):
            centre, low, high = values[places].T
            face = COLOURS["surface"] if kind == "foreign" else colour
            ax.hlines(places, low, high, color=colour, linewidth=1.6)
            ax.plot(centre, places, "o", color=colour, markerfacecolor=face, markersize=5, label=kind)
    usual = without_outliers(values[:, 0])
    if len(usual) < np.isfinite(values[:, 0]).sum():
        low, high = usual[0] - np.ptp(usual), usual[-1] + np.ptp(usual)
        ax.set_xlim(low, high)
        for mark, place, beyond in (("<", 0.02, values[:, 0] < low), (">", 0.98, values[:, 0] > high)):
            rows = np.flatnonzero(beyond)
            ax.plot(np.full(len(rows), place), rows, mark, color=COLOURS["muted"], transform=ax.get_yaxis_transform())
    ax.set_yticks(range(len(names)), labels, parse_math=False)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(axis="x", alpha=0.6)
    ax.spines["left"].set_visible(False)
    ax.locator_params(axis="x", nbins=6)
    if {*kinds} - {"candidate"}:
        _legend(ax)
    return ax


def _legend(ax: Axes) -> None:
    ax.legend(
        loc="lower right",  # there is room above the names on the left
        bbox_to_anchor=(1, 1),
        ncols=4,
        frameon=False,
        borderaxespad=0,
        handletextpad=0.2,
        columnspacing=1,
    )


def _plot_returns(ranking: Ranking, y: np.ndarray, order: np.ndarray, foreign: np.ndarray, ax: Axes | None) -> Axes:
    """Plot true returns over scores, and name foreign candidates."""
    ax = _axes(ax, 4.2)
    x, errors = ranking.scores, np.nan_to_num(ranking.standard_errors)
    ax.errorbar(x[~foreign], y[~foreign], xerr=errors[~foreign], fmt="o", color="C0", ecolor="C0", elinewidth=0.6)
    if foreign.any():
        marks = tuple(ax.plot(x[foreign], y[foreign], mark, color="C1", fillstyle="none", ms=9)[0] for mark in "ox")
        names = [printable(ranking.names[i], _LABEL) for i in order if foreign[i]]
        legend = ax.legend([marks], [f"foreign: {list_names(names, most=3)}"], loc="lower right")
        legend.get_texts()[0].set_parse_math(False)
    ax.set(xlabel="score (± standard error)", ylabel="true return")
    ax.grid(alpha=0.3)
    return ax


def _axes(ax: Axes | None, inches: float) -> Axes:
    """Return the axes, or those of a new figure of pyplot."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.figure(figsize=(6.4, inches), layout="constrained").add_subplot()
