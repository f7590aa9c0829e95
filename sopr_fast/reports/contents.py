"""What reports say of a ranking, an evaluation and a selection."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from ..estimators.log_support import agreement_in_words
from ..results.numbers import chance, number
from ..results.ranking import Ranking
from ..results.tables import column
from ..selection.evaluation import Evaluation
from ..selection.selection import Selection
from ..selection.verdict import find_rival
from .page import Table
from .plots import EIGHTY, plot_evaluation, plot_left_out, plot_ranking, plot_selection
from .svg import Picture, draw

_ROWS = 20  # of policies in a figure
_GOOD, _USELESS = 0.7, 0.3  # rank correlations


@singledispatch
def content(result: Any) -> dict[str, Any]:
    """Return what the report of a result says, see `render`."""
    raise TypeError(f"no report of a {type(result).__name__}")


@content.register(Ranking)
def _ranking_page(ranking: Ranking) -> dict[str, Any]:
    collapsed = bool((ranking.history or {}).get("collapsed"))
    shown = min(_ROWS, len(ranking))
    caption = f"Scores, the first {shown} of {len(ranking):,}." if shown < len(ranking) else "Scores."
    return dict(
        kind="Ranking of policies",
        headline="Training collapsed: this order means nothing." if collapsed else f"{ranking.headline}.",
        tone="bad" if collapsed else "open" if ranking.foreign[ranking.places[0]] else "",
        reasons=["Train again with another seed or more policies."] if collapsed else [],
        notes=[*getattr(ranking, "notes", []), *(doubt[0].upper() + doubt[1:] for doubt, _ in ranking.doubts)],
        main=draw(lambda ax: plot_ranking(ranking, ax=ax, rows=_ROWS), caption),
        title="All candidates",
        table=_ranking_table(ranking),
        legend=_ranking_legend(ranking),
        evidence=_ranking_evidence(ranking),
        pictures=[],
        settings=ranking.settings,
    )


def _ranking_table(ranking: Ranking) -> Table:
    places = ranking.places
    above = column("above the next", np.append(ranking.wins(places[:-1], places[1:]), np.nan), chance)
    kinds = np.where(ranking.foreign, "foreign", "candidate")[places].tolist()
    return Table("Candidates by score", [*ranking.cells(), above], kinds)


def _ranking_legend(ranking: Ranking) -> str:
    if ranking.subset_scores is not None:
        return (
            "Scores order policies; they are not returns. Errors and probabilities are over draws of states only: they "
            "do not say whether the model orders policies as their returns do. Distance is that of actions to the "
            "nearest known policy; a foreign candidate is farther from them than they usually are from each other."
        )
    measure = "Measure a policy before you deploy it."
    if not np.isfinite(ranking.standard_errors).any():
        return measure
    return f"Errors and probabilities come from replicates, such as episodes or members of a simulator. {measure}"


def _ranking_evidence(ranking: Ranking) -> list[str]:
    history = ranking.history
    if history is None:
        return ["This ranking keeps nothing of how its scores were made."]
    learned = f"The model learned from {ranking.settings['training policies']} policies"
    correlations, best = history.get("validation_rank_correlation", []), history.get("best_step")
    if isinstance(best, int) and 0 <= best < len(correlations):
        return [f"{learned}. On its validation policies it has a rank correlation of {number(correlations[best])}."]
    return [f"{learned}. None were held out, so nothing here shows how well it ranks: evaluate does."]


@content.register(Evaluation)
def _evaluation_page(evaluation: Evaluation) -> dict[str, Any]:
    cells, tied = evaluation.cells(), evaluation.tied
    mean = evaluation.measures[tied[0]]["spearman"][0]
    caption = f"Rank correlation on {evaluation.tested}, which the methods had not learned from, with 90 % intervals."
    return dict(
        kind="Evaluation of methods",
        headline=f"{evaluation.headline}.",
        tone="bad" if mean < _USELESS else "good" if mean >= _GOOD and len(tied) == 1 else "",
        reasons=["Do not rank these policies from this log: measure them."] if mean < _USELESS else [],
        notes=evaluation.notes,
        main=draw(lambda ax: plot_evaluation(evaluation, ax=ax), f"{caption} 1 is the right order, 0 none."),
        title="How well each method ranks",
        table=Table(evaluation.title, cells, ["chosen" if name in tied else "" for name in cells[0].texts]),
        legend="spearman: rank correlation of values and known returns with its 90 % interval, 1 is the right order, 0 "
        "none; regret@1: what the choice of the highest value loses, in shares of the range of returns, regret@3: of "
        "the three highest; bold: the best methods within the error.",
        evidence=[
            "Each known policy was valued by a method that had not learned from it.",
            *(f"{name} was dropped: {reason}." for name, reason in evaluation.dropped.items()),
        ],
        pictures=[],
        settings={"policies": len(evaluation.names), "folds": len(evaluation.folds), **evaluation.settings},
    )


@content.register(Selection)
def _selection_page(selection: Selection) -> dict[str, Any]:
    verdict, known, agreed = selection.verdict, selection.known, agreement_in_words(selection.agreement)
    distance = "; distance: of actions to the nearest known policy, 1 as far as known ones usually are from each other"
    return dict(
        kind="Selection of policies",
        headline=f"{verdict.text}.",
        tone={"deploy": "good", "keep": "", "measure": "open"}[verdict.kind],
        reasons=[verdict.reason],
        notes=selection.notes[len(agreed) :],
        main=_selection_figure(selection),
        title="All policies",
        table=_selection_table(selection),
        legend=f"{selection.legend}{distance if known.any() and not known.all() else ''}.",
        evidence=[*(f"{each}." for each in agreed), *_selection_evidence(selection)],
        pictures=_left_out_figure(selection),
        settings={**selection.settings, f"known {selection.unit}s": int(known.sum())},
    )


def _selection_figure(selection: Selection) -> Picture:
    shown = min(_ROWS, len(selection.names))
    caption = f"{selection.unit.capitalize()}s with 80 % intervals: measured for known policies, predicted for others"
    foreign = not selection.rankable[selection.order[:shown]].all()
    caption += ", where foreign ones cannot be ranked." if foreign else "."
    if shown < len(selection.names):
        caption += f" The best {shown} of {len(selection.names):,}."
    return draw(lambda ax: plot_selection(selection, ax, _ROWS), caption)


def _selection_table(selection: Selection) -> Table:
    order, known, chosen = selection.order, selection.known, selection.verdict.policies
    columns, names = selection.cells(), [selection.names[i] for i in order]
    if (rival := find_rival(selection)) is not None:
        beats = selection.probability_beats(selection.names[rival])
        beats[rival] = np.nan
        who = "the incumbent" if selection.incumbent else "the best known"
        columns.append(column(f"better than {who}", beats[order], chance))
    columns.append(column("distance", np.where(known, np.nan, selection.distance_ratio)[order]))
    kinds = np.where(known, "known", np.where(selection.rankable, "candidate", "foreign"))[order]
    predicted = ": measured for known policies, predicted for candidates" if selection.candidates else ", all measured"
    return Table(
        f"{selection.unit.capitalize()}s{predicted}",
        columns,
        [f"{kind} chosen" if name in chosen else kind for name, kind in zip(names, kinds, strict=True)],
    )


def _selection_evidence(selection: Selection) -> list[str]:
    found = {name: value for name, value in selection.evidence.items() if np.isfinite(value)}
    if not found:
        return [f"Fewer than three {selection.unit}s are known, so nothing here tests the predictions."]
    order, units = found.pop("left out"), f"{selection.unit}s"
    tested = (
        f"Predicted without their own {units}, the known policies are in an order that has a rank correlation of "
        f"{number(order)} with the measured one."
    )
    alone = [f"By {name} alone the rank correlation is {number(value)}." for name, value in found.items()]
    return [tested, *alone] if order >= 0 else alone  # else a note says that the verdict does not rest on predictions


def _left_out_figure(selection: Selection) -> list[Picture]:
    known = selection.known
    if known.sum() < 3:
        return []
    predicted, deviation = selection.posterior.left_out[:, known]
    inside = int((np.abs(predicted - selection.returns[known]) <= EIGHTY * deviation).sum())
    caption = f"Known policies, each predicted without its own {selection.unit}. {inside} of {known.sum()} lie inside "
    return [draw(lambda ax: plot_left_out(selection, ax), f"{caption}of their 80 % intervals.", height=2.9)]
