"""The report of an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..results.metrics import spearman
from ..results.numbers import in_words, number
from ..selection.evaluation import KINDS, Evaluation
from . import figures
from .page import Table
from .plots import plot_evaluation

_GOOD, _USELESS = 0.7, 0.3  # rank correlations
_DRAWN = 4  # methods


def evaluation_page(evaluation: Evaluation) -> dict[str, Any]:
    """Return what the report says; the headline and the figure are about the last kind of folds."""
    kind = evaluation.kinds[-1]
    measures, tied = evaluation.measures(kind), evaluation.tied(kind)
    mean = measures[tied[0]]["spearman"][0]
    dropped = [f"{name} was dropped: {reason}." for name, reason in evaluation.dropped.items()]
    return dict(
        kind="Evaluation of methods",
        headline=f"{evaluation.headline}.",
        tone="bad" if mean < _USELESS else "good" if mean >= _GOOD and len(tied) == 1 else "",
        reasons=[_reason(evaluation, kind) for kind in evaluation.kinds],
        now=_now(tied[0], mean),
        notes=list(evaluation.notes),
        main=figures.draw(
            lambda ax: plot_evaluation(evaluation, kind=kind, ax=ax),
            f"Rank correlation on {KINDS[kind]}, which the methods had not learned from, with 90 % intervals. "
            "1 is the right order, 0 none.",
        ),
        title="How well each method ranks",
        tables=[_table(evaluation, kind) for kind in evaluation.kinds],
        legend="spearman: rank correlation of values and known returns with its 90 % interval, 1 is the right order, 0 "
        "none; regret@1: what the choice of the highest value loses, in shares of the range of returns, regret@3: of "
        "the three highest; bold: the best methods within the error.",
        evidence=[*dropped, "Each point is a known policy, valued by a method that had not learned from it."],
        pictures=[_scatter(evaluation, name) for name in [*measures][:_DRAWN]],
        settings={"policies": len(evaluation.names), "groups": len(set(evaluation.groups)), **evaluation.settings},
    )


def _reason(evaluation: Evaluation, kind: str) -> str:
    tied = evaluation.tied(kind)
    mean, low, high = evaluation.measures(kind)[tied[0]]["spearman"]
    text = f"On {KINDS[kind]}, {tied[0]} has a rank correlation of {number(mean)}"
    if np.isfinite(low):
        text += f" (90 % interval {number(low)} to {number(high)})"
    others = f"; {in_words(tied[1:])} {'is' if len(tied) == 2 else 'are'} as good within the error"
    return f"{text}{others if len(tied) > 1 else ''}."


def _now(best: str, mean: float) -> str:
    if np.isnan(mean):
        return "Measure more policies: at least three in a group."
    if mean >= _GOOD:
        return f"Rank your candidates with {best}. Let select say which candidate to deploy."
    if mean >= _USELESS:
        return f"Use {best} to choose which candidates to measure; do not deploy one without a measurement."
    return "Do not rank these policies from this log. Measure candidates, or log more behaviour like theirs."


def _table(evaluation: Evaluation, kind: str) -> Table:
    cells, tied = evaluation.cells(kind), evaluation.tied(kind)
    return Table(evaluation.title(kind), cells, ["chosen" if name in tied else "" for name in cells[0].texts])


def _scatter(evaluation: Evaluation, method: str) -> figures.Picture:
    """Return a figure of the known returns over the values of a method in the first kind of folds."""
    tested = np.concatenate([*evaluation.folds[evaluation.kinds[0]].values()])
    values, returns = evaluation.values[method][evaluation.kinds[0]][tested], evaluation.returns[tested]
    return figures.scatter(
        values,
        returns,
        axes=(f"value by {method}", "known return"),
        caption=f"{method}: rank correlation {number(spearman(values, returns))} over all folds.",
    )
