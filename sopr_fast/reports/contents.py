"""What reports say of a ranking, an evaluation and a selection."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from ..estimators.log_support import agreement_in_words
from ..results.metrics import spearman
from ..results.numbers import chance, in_words, number
from ..results.ranking import Ranking
from ..results.tables import column
from ..selection.evaluation import KINDS, Evaluation
from ..selection.selection import Selection
from . import figures
from .page import Table
from .plots import plot_evaluation, plot_ranking, plot_selection

_TRAINING = ("subset_size", "clusters", "subsets", "steps", "encoder", "width", "low_layers", "high_layers")
_GOOD, _USELESS = 0.7, 0.3  # rank correlations
_DRAWN = 4  # methods
_MEASURED = "measured.csv"


@singledispatch
def content(result: Any, command: str) -> dict[str, Any]:
    """Return what the report of a result says, see `render`; `command` is the one that made the result, if one did."""
    raise TypeError(f"no report of a {type(result).__name__}")


@content.register(Ranking)
def _ranking_page(ranking: Ranking, command: str) -> dict[str, Any]:
    collapsed = ranking.training is not None and bool(ranking.training.history.get("collapsed"))
    settings = dict(ranking.settings)
    if ranking.training is not None:
        own = ranking.training.settings
        settings |= {f"training_{name}": own[name] for name in (*_TRAINING, "seed") if name in own}
    return dict(
        kind="Ranking of policies",
        headline="Training collapsed: this order means nothing." if collapsed else f"{ranking.headline}.",
        tone="bad" if collapsed else "open" if ranking.foreign[ranking.places[0]] else "",
        reasons=_ranking_reasons(ranking),
        now="Train again with another seed or more policies." if collapsed else _ranking_advice(ranking),
        notes=[*getattr(ranking, "notes", []), *(doubt[0].upper() + doubt[1:] for doubt, _ in ranking.doubts)],
        main=_ranking_figure(ranking),
        title="All candidates",
        tables=[_ranking_table(ranking)],
        legend="Errors and probabilities come from replicates, such as episodes or members of a simulator."
        if ranking.subset_scores is None
        else "Errors and probabilities are over draws of states only: they do not say whether the model orders "
        "policies as their returns do. Distance is that of actions to the nearest known policy; a foreign candidate is "
        "farther from them than they usually are from each other.",
        evidence=_ranking_evidence(ranking),
        pictures=[],
        settings=settings,
    )


def _ranking_reasons(ranking: Ranking) -> list[str]:
    by_subsets = ranking.subset_scores is not None
    if len(ranking) == 1:
        return []
    if tied := ranking.tied:
        those = f"{len(tied) + 1} candidates" if len(tied) > 1 else "two"
        noise = "the noise of drawing states" if by_subsets else "their errors"
        return [f"The scores of these {those} differ by less than {noise}."]
    win, second = float(ranking.wins(ranking.places[:1], ranking.places[1:2])[0]), ranking.order[1]
    if np.isnan(win):
        return [f"The next is {second}."]
    draws = "draws of states; that says nothing of returns" if by_subsets else "replicates"
    return [f"It scores above the next, {second}, in {chance(win)} of {draws}."]


def _ranking_advice(ranking: Ranking) -> str:
    names, foreign = np.array(ranking.order, object), ranking.foreign[ranking.places]
    best = [*names[~foreign][:3], *names[:1][foreign[:1]]]
    measure = f"Measure {in_words(best)} by 20 episodes{' each' if len(best) > 1 else ''}"
    if ranking.subset_scores is None:
        return f"{measure} before you deploy one."
    return f"Scores order policies; they are not returns. {measure}; or let select say whether to deploy one."


def _ranking_figure(ranking: Ranking) -> figures.Picture:
    shown = min(figures.ROWS, len(ranking))
    caption = f"Scores, the first {shown} of {len(ranking):,}." if shown < len(ranking) else "Scores."
    return figures.plot(lambda ax: plot_ranking(ranking, ax=ax, rows=figures.ROWS), caption)


def _ranking_table(ranking: Ranking) -> Table:
    places = ranking.places
    above = column("above the next", np.append(ranking.wins(places[:-1], places[1:]), np.nan), chance)
    kinds = np.where(ranking.foreign, "foreign", "candidate")[places].tolist()
    return Table("Candidates by score", [*ranking.cells(), above], kinds)


def _ranking_evidence(ranking: Ranking) -> list[str]:
    if ranking.training is None:
        return ["This ranking keeps nothing of how its scores were made."]
    history, learned = ranking.training.history, f"The model learned from {len(ranking.training.names)} policies"
    correlations, best = history.get("validation_rank_correlation", []), history.get("best_step")
    if isinstance(best, int) and 0 <= best < len(correlations):
        return [f"{learned}. On its validation policies it has a rank correlation of {number(correlations[best])}."]
    return [f"{learned}. None were held out, so nothing here shows how well it ranks: evaluate does."]


@content.register(Evaluation)
def _evaluation_page(evaluation: Evaluation, command: str) -> dict[str, Any]:
    kind = evaluation.kinds[-1]
    measures, tied = evaluation.measures(kind), evaluation.tied(kind)
    mean = measures[tied[0]]["spearman"][0]
    dropped = [f"{name} was dropped: {reason}." for name, reason in evaluation.dropped.items()]
    return dict(
        kind="Evaluation of methods",
        headline=f"{evaluation.headline}.",
        tone="bad" if mean < _USELESS else "good" if mean >= _GOOD and len(tied) == 1 else "",
        reasons=[_evaluation_reason(evaluation, kind) for kind in evaluation.kinds],
        now=_evaluation_advice(tied[0], mean),
        notes=list(evaluation.notes),
        main=figures.plot(
            lambda ax: plot_evaluation(evaluation, kind=kind, ax=ax),
            f"Rank correlation on {KINDS[kind]}, which the methods had not learned from, with 90 % intervals. "
            "1 is the right order, 0 none.",
        ),
        title="How well each method ranks",
        tables=[_evaluation_table(evaluation, kind) for kind in evaluation.kinds],
        legend="spearman: rank correlation of values and known returns with its 90 % interval, 1 is the right order, 0 "
        "none; regret@1: what the choice of the highest value loses, in shares of the range of returns, regret@3: of "
        "the three highest; bold: the best methods within the error.",
        evidence=[*dropped, "Each point is a known policy, valued by a method that had not learned from it."],
        pictures=[_method_figure(evaluation, name) for name in [*measures][:_DRAWN]],
        settings={"policies": len(evaluation.names), "groups": len(set(evaluation.groups)), **evaluation.settings},
    )


def _evaluation_reason(evaluation: Evaluation, kind: str) -> str:
    tied = evaluation.tied(kind)
    mean, low, high = evaluation.measures(kind)[tied[0]]["spearman"]
    text = f"On {KINDS[kind]}, {tied[0]} has a rank correlation of {number(mean)}"
    if np.isfinite(low):
        text += f" (90 % interval {number(low)} to {number(high)})"
    others = f"; {in_words(tied[1:])} {'is' if len(tied) == 2 else 'are'} as good within the error"
    return f"{text}{others if len(tied) > 1 else ''}."


def _evaluation_advice(best: str, mean: float) -> str:
    if np.isnan(mean):
        return "Measure more policies: at least three in a group."
    if mean >= _GOOD:
        return f"Rank your candidates with {best}. Let select say which candidate to deploy."
    if mean >= _USELESS:
        return f"Use {best} to choose which candidates to measure; do not deploy one without a measurement."
    return "Do not rank these policies from this log. Measure candidates, or log more behaviour like theirs."


def _evaluation_table(evaluation: Evaluation, kind: str) -> Table:
    cells, tied = evaluation.cells(kind), evaluation.tied(kind)
    return Table(evaluation.title(kind), cells, ["chosen" if name in tied else "" for name in cells[0].texts])


def _method_figure(evaluation: Evaluation, method: str) -> figures.Picture:
    """Return a figure of the known returns over the values of a method in the first kind of folds."""
    tested = np.concatenate([*evaluation.folds[evaluation.kinds[0]].values()])
    values, returns = evaluation.values[method][evaluation.kinds[0]][tested], evaluation.returns[tested]
    return figures.scatter(
        values,
        returns,
        axes=(f"value by {method}", "known return"),
        caption=f"{method}: rank correlation {number(spearman(values, returns))} over all folds.",
    )


@content.register(Selection)
def _selection_page(selection: Selection, command: str) -> dict[str, Any]:
    verdict, known, agreed = selection.verdict, selection.known, agreement_in_words(selection.agreement)
    distance = "; distance: of actions to the nearest known policy, 1 as far as known ones usually are from each other"
    return dict(
        kind="Selection of policies",
        headline=f"{verdict.text}.",
        tone={"deploy": "good", "keep": "", "measure": "open"}[verdict.kind],
        reasons=[verdict.reason],
        now=_selection_advice(selection, command),
        again=f"{command} --returns {_MEASURED}" if command and verdict.kind == "measure" else "",
        notes=selection.notes[len(agreed) :],
        main=_selection_figure(selection),
        title="All policies",
        tables=[_selection_table(selection)],
        legend=f"{selection.legend}{distance if known.any() and not known.all() else ''}.",
        evidence=[*(f"{each}." for each in agreed), *_selection_evidence(selection)],
        pictures=_left_out_figures(selection),
        settings={**selection.settings, f"known {selection.unit}s": int(known.sum())},
    )


def _selection_advice(selection: Selection, command: str) -> str:
    """Return what to do, in words."""
    kind = selection.verdict.kind
    if kind == "deploy":
        return "Deploy it, and compare its returns in use with this one."
    if kind == "keep":
        return "Change nothing. Train other candidates, or log other behaviour."
    many = len(selection.verdict.policies) > 1
    run, unit = f"Run {'these policies' if many else 'this policy'}", selection.unit
    pair = f'{{"cost": {unit}}}' if selection.are_costs else unit
    if command:
        trained = " Nothing is trained anew." if selection.settings.get("kept in") else ""
        return f"{run}, write {_MEASURED} with columns name and {unit}, and select again.{trained}"
    return f"{run}, then ask selection.update({{name: {pair}}}), which trains nothing."


def _selection_figure(selection: Selection) -> figures.Picture:
    shown = min(figures.ROWS, len(selection.names))
    caption = f"{selection.unit.capitalize()}s with 80 % intervals: measured for known policies, predicted for others"
    foreign = not selection.rankable[selection.order[:shown]].all()
    caption += ", where foreign ones cannot be ranked." if foreign else "."
    if shown < len(selection.names):
        caption += f" The best {shown} of {len(selection.names):,}."
    return figures.plot(lambda ax: plot_selection(selection, ax, figures.ROWS), caption)


def _selection_table(selection: Selection) -> Table:
    order, known, chosen = selection.order, selection.known, selection.verdict.policies
    columns, names = selection.cells(), [selection.names[i] for i in order]
    if selection.rival is not None:
        beats = selection.probability_beats(selection.rival)
        beats[selection.names.index(selection.rival)] = np.nan
        who = "the incumbent" if selection.incumbent else "the best known"
        columns.append(column(f"better than {who}", beats[order], chance))
    columns.append(column("distance", np.where(known, np.nan, selection.distance_ratio)[order]))
    kinds = np.where(known, "known", np.where(selection.rankable, "candidate", "foreign"))[order]
    predicted = ": measured for known policies, predicted for candidates" if selection.candidates else ", all measured"
    return Table(
        f"{selection.unit.capitalize()}s{predicted}",
        columns,
        [f"{kind} chosen" if name in chosen else kind for name, kind in zip(names, kinds, strict=True)],
        [[name for name in selection.measured.copies[i] if name != selection.names[i]] for i in order],
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


def _left_out_figures(selection: Selection) -> list[figures.Picture]:
    known = selection.known
    if known.sum() < 3:
        return []
    predicted, deviation = selection.posterior.left_out[:, known]
    half, returns = 1.2816 * deviation, selection.returns[known]  # 80 % of a normal distribution
    sign, unit = (-1 if selection.are_costs else 1), selection.unit
    inside = int((np.abs(predicted - returns) <= half).sum())
    return [
        figures.scatter(
            sign * predicted,
            sign * returns,
            axes=(f"{unit} predicted without its measurement", f"measured {unit}"),
            caption=f"Known policies, each predicted without its own {unit}. {inside} of {len(returns)} lie inside of "
            "their 80 % intervals; those outside are hollow.",
            half=half,
        )
    ]
