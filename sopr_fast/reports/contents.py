"""What reports say of a ranking, an evaluation and a selection."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from ..estimators.log_support import agreement_in_words
from ..results.numbers import number
from ..results.ranking import Ranking
from ..selection.evaluation import Evaluation
from ..selection.selection import Selection
from .plots import EIGHTY, plot_evaluation, plot_ranking, plot_selection
from .svg import draw

_ROWS = 20  # of policies in a figure
_USELESS = 0.3  # rank correlation
_OF_REPLICATES = "Errors, if any, come from replicates, such as episodes or members of a simulator."
_OF_SUBSETS = (
    "Scores order policies; they are not returns. Errors are over draws of states only: they do not say whether the "
    "model orders policies as their returns do. Distance is that of actions to the nearest known policy; a foreign "
    "candidate is farther from them than they usually are from each other."
)


@singledispatch
def content(result: Any) -> dict[str, Any]:
    """Return what the report of a result says, see `render`."""
    raise TypeError(f"result must be what rank, evaluate, select or an estimator returned, got {type(result).__name__}")


@content.register(Ranking)
def _of_ranking(ranking: Ranking) -> dict[str, Any]:
    collapsed = bool((ranking.history or {}).get("collapsed"))
    return dict(
        kind="Ranking of policies",
        headline="Training collapsed: this order means nothing." if collapsed else f"{ranking.headline}.",
        reasons=["Train again with another seed or more policies."] if collapsed else [],
        notes=[*getattr(ranking, "notes", []), *(doubt[0].upper() + doubt[1:] for doubt, _ in ranking.doubts)],
        picture=draw(lambda ax: plot_ranking(ranking, ax=ax, rows=_ROWS)),
        caption=f"Scores{_first(len(ranking))}.",
        title="Candidates by score",
        columns=ranking.cells(),
        legend=_OF_REPLICATES if ranking.subset_scores is None else _OF_SUBSETS,
        evidence=_ranking_evidence(ranking),
        settings=ranking.settings,
    )


def _first(count: int) -> str:
    return f", the first {_ROWS} of {count:,}" if count > _ROWS else ""


def _ranking_evidence(ranking: Ranking) -> list[str]:
    history = ranking.history
    if history is None:
        return ["This ranking keeps nothing of how its scores were made: measure a policy before you deploy it."]
    learned = f"The model learned from {ranking.settings['training policies']} policies"
    correlations, best = history.get("validation_rank_correlation", []), history.get("best_step")
    if isinstance(best, int) and 0 <= best < len(correlations):
        return [f"{learned}. On its validation policies it has a rank correlation of {number(correlations[best])}."]
    return [f"{learned}. None were held out, so nothing here shows how well it ranks: evaluate does."]


@content.register(Evaluation)
def _of_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    mean = evaluation.measures[evaluation.tied[0]]["spearman"][0]
    return dict(
        kind="Evaluation of methods",
        headline=f"{evaluation.headline}.",
        reasons=["Do not rank these policies from this log: measure them."] if mean < _USELESS else [],
        notes=evaluation.notes,
        picture=draw(lambda ax: plot_evaluation(evaluation, ax=ax)),
        caption=f"Rank correlation on {evaluation.tested}, which the methods had not learned from, with 90 % "
        "intervals. 1 is the right order, 0 none.",
        title=evaluation.title,
        columns=evaluation.cells(),
        legend="spearman: rank correlation of values and known returns with its 90 % interval, 1 is the right order, 0 "
        "none; regret@1: what the choice of the highest value loses, in shares of the range of returns, regret@3: of "
        "the three highest.",
        evidence=[
            "Each known policy was valued by a method that had not learned from it.",
            *(f"{name} was dropped: {reason}." for name, reason in evaluation.dropped.items()),
        ],
        settings={"policies": len(evaluation.names), "folds": len(evaluation.folds), **evaluation.settings},
    )


@content.register(Selection)
def _of_selection(selection: Selection) -> dict[str, Any]:
    verdict, agreed = selection.verdict, agreement_in_words(selection.agreement)
    caption = f"{selection.unit.capitalize()}s with 80 % intervals: measured for known policies, predicted for others"
    if not selection.rankable[selection.order[:_ROWS]].all():
        caption += ", where foreign ones cannot be ranked"
    return dict(
        kind="Selection of policies",
        headline=f"{verdict.text}.",
        reasons=[verdict.reason],
        notes=selection.notes[len(agreed) :],
        picture=draw(lambda ax: plot_selection(selection, ax=ax, rows=_ROWS)),
        caption=f"{caption}{_first(len(selection.names))}.",
        title=f"{selection.unit.capitalize()}s of all policies",
        columns=selection.cells(),
        legend=f"{selection.legend}.",
        evidence=[*(f"{each}." for each in agreed), *_selection_evidence(selection)],
        settings={**selection.settings, f"known {selection.unit}s": int(selection.known.sum())},
    )


def _selection_evidence(selection: Selection) -> list[str]:
    found, known = selection.evidence, selection.known
    if known.sum() < 3:
        return [f"Fewer than three {selection.unit}s are known, so nothing here tests the predictions."]
    order, units = found.pop("left out"), f"{selection.unit}s"
    alone = [f"By {name} alone the rank correlation is {number(value)}." for name, value in found.items()]
    if not order >= 0:  # a note says that the verdict does not rest on predictions
        return alone
    predicted, deviation = selection.posterior.left_out[:, known]
    inside = int((np.abs(predicted - selection.returns[known]) <= EIGHTY * deviation).sum())
    tested = (
        f"Predicted without their own {units}, the known policies are in an order that has a rank correlation of "
        f"{number(order)} with the measured one, and {inside} of {known.sum()} lie inside of their 80 % intervals."
    )
    return [tested, *alone]
