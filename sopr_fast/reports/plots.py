"""Plots of results, by `Result.plot`, on axes of matplotlib."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from ..inputs.accepted import ReturnsLike
from ..inputs.returns import check_returns
from ..results.ranking import Ranking, ranks_of
from ..runtime.process import in_notebook
from ..runtime.text import list_names, tick_label
from ..selection.evaluation import MEASURES, Evaluation
from ..selection.selection import Selection

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLOTTED = 50  # policies


@singledispatch
def plot(result: Any) -> Axes:
    """Plot a result on axes; those of a new figure by default."""
    raise TypeError(f"no plot of a {type(result).__name__}")


@plot.register(Ranking)
def plot_ranking(ranking: Ranking, returns: ReturnsLike | None = None, ax: Axes | None = None) -> Axes:
    """Plot scores with their standard errors, or true returns over scores.

    Without returns the best candidate is on top; the first 50 are shown. With returns the legend names the foreign
    candidates, which are crossed rings; a label names the candidate whose rank by score differs most from its rank
    by return. Foreign candidates have no error bar.

    Args:
        ranking: Scores, or values of an estimator.
        returns: True returns, see `Ranking.spearman`; None for none.
        ax: Axes to plot on; those of a new figure by default.

    Raises:
        TypeError, ValueError: A candidate has no return, or returns are not finite numbers.
    """
    order, foreign = np.argsort(-ranking.scores, kind="stable"), ranking.is_foreign()
    if returns is not None:
        return _plot_returns(ranking, check_returns(returns, ranking.names), order, foreign, ax)
    shown = order[:_PLOTTED][::-1]
    ax = _axes(ax, 1.2 + 0.3 * len(shown))
    errors = np.where(foreign, 0, np.nan_to_num(ranking.standard_errors))
    labels = [tick_label(ranking.names[i]) + (" (foreign)" if foreign[i] else "") for i in shown]
    ax.errorbar(ranking.scores[shown], np.arange(len(shown)), xerr=errors[shown], fmt="o", capsize=2)
    ax.set_yticks(np.arange(len(shown)), labels)
    ax.set(xlabel="score (± standard error)")
    if len(shown) < len(ranking):
        ax.set_title(f"the first {len(shown)} of {len(ranking):,} candidates")
    ax.grid(axis="y", alpha=0.3)
    return ax


def _plot_returns(ranking: Ranking, y: np.ndarray, order: np.ndarray, foreign: np.ndarray, ax: Axes | None) -> Axes:
    """Plot true returns over scores; name foreign candidates, and the one that is farthest from its place."""
    ax = _axes(ax, 4.2)
    x, errors = ranking.scores, np.nan_to_num(ranking.standard_errors)
    ax.errorbar(x[~foreign], y[~foreign], xerr=errors[~foreign], fmt="o", color="C0", ecolor="C0", elinewidth=0.6)
    if foreign.any():
        marks = tuple(ax.plot(x[foreign], y[foreign], mark, color="C1", fillstyle="none", ms=9)[0] for mark in "ox")
        names = [tick_label(ranking.names[i]) for i in order if foreign[i]]
        ax.legend([marks], [f"foreign: {list_names(names, most=3)}"], loc="lower right")
    by_return = ranks_of(y)
    gaps = np.abs(by_return - ranking.ranks)
    misfit = int(np.lexsort((by_return, gaps))[-1])  # of equal gaps, that of a policy that is scored too high
    if gaps[misfit] > 1:
        label = f"{tick_label(ranking.names[misfit])}\nrank {ranking.ranks[misfit]}, true rank {by_return[misfit]}"
        ax.annotate(label, (x[misfit], y[misfit]), (8, -4), textcoords="offset points", va="top")
    ax.set(xlabel="score (± standard error)", ylabel="true return")
    ax.grid(alpha=0.3)
    return ax


@plot.register(Evaluation)
def plot_evaluation(evaluation: Evaluation, measure: str = "spearman", ax: Axes | None = None) -> Axes:
    """Plot a measure of every method with its interval, one colour for each kind of folds.

    Args:
        evaluation: Measures of methods.
        measure: "spearman", "regret@1" or "regret@3".
        ax: Axes to plot on; those of a new figure by default.

    Raises:
        ValueError: The measure is unknown.
    """
    if measure not in MEASURES:
        raise ValueError(f"no measure {measure!r}; choose from {', '.join(MEASURES)}")
    ax = _axes(ax, 1.4 + 0.4 * len(evaluation.values))
    methods = list(evaluation.values)[::-1]
    labels = {"random": "random folds", "group": "one group left out"}
    for shift, kind in enumerate(evaluation.kinds):
        found = evaluation.measures(kind)
        mean, low, high = np.array([found[method][measure] for method in methods]).T
        places = np.arange(len(methods)) + 0.18 * (0.5 - shift) * (len(evaluation.kinds) - 1) * 2
        error = np.abs(np.stack([mean - low, high - mean]))
        ax.errorbar(mean, places, xerr=error, fmt="o", capsize=2, label=labels[kind])
    ax.set_yticks(range(len(methods)), map(tick_label, methods))
    ax.set(xlabel=f"{measure} (90 % interval)")
    ax.grid(axis="x", alpha=0.3)
    ax.legend()
    return ax


@plot.register(Selection)
def plot_selection(selection: Selection, ax: Axes | None = None) -> Axes:
    """Plot the 50 highest returns with their intervals, candidates and known policies in two colours.

    Args:
        selection: Predicted and measured returns.
        ax: Axes to plot on; those of a new figure by default.
    """
    table = selection.columns()
    count = min(len(table["policy"]), _PLOTTED)
    ax = _axes(ax, 1.4 + 0.22 * count)
    known = np.array(table["known"])[:count]
    center, low, high = (np.array(table[name])[:count] for name in ("return", "low", "high"))
    places = np.arange(count)[::-1]
    for rows, label in ((~known, "candidate"), (known, "known")):
        error = np.stack([center[rows] - low[rows], high[rows] - center[rows]])
        ax.errorbar(center[rows], places[rows], xerr=error, fmt="o", capsize=2, label=label)
    ax.set_yticks(places, map(tick_label, table["policy"][:count]))
    ax.set(xlabel="return (80 % interval)", title=selection.verdict.text.replace("$", r"\$"))
    ax.grid(axis="x", alpha=0.3)
    ax.legend()
    return ax


def _axes(ax: Axes | None, height: float) -> Axes:
    """Return the axes, or those of a new figure, which a notebook shows and which opens no window elsewhere."""
    if ax is not None:
        return ax
    if in_notebook():
        from matplotlib.pyplot import figure as make
    else:
        from matplotlib.figure import Figure as make
    return make(figsize=(6.4, height), layout="constrained").add_subplot()
