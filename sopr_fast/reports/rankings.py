"""The report of a ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..inputs.returns import check_returns
from ..ranking.metrics import spearman
from ..ranking.ranking import Ranking
from . import figures
from .text import MISSING, Name, Numbers, chance, listed, number

_MAPPED = 200  # known policies on the map
_SURE = 0.9  # probability from which a score is higher than another
_TRAINING = ("loss", "subset_size", "clusters", "subsets", "steps", "encoder", "width", "low_layers", "high_layers")


def ranking_context(
    ranking: Ranking, returns: Any, coverage: Mapping[str, float] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the template, and the settings.

    Args:
        ranking: The ranking.
        returns: True returns of the candidates, or None.
        coverage: Share of logged states in which each candidate acts as the log does, or None.
    """
    true = None if returns is None else check_returns(returns, ranking.names)
    order = np.argsort(ranking.ranks)
    foreign = np.array([bool(one) for one in ranking.foreign or [False] * len(ranking)], bool)
    kinds = np.where(foreign, "foreign", "candidate")
    errors = np.where(foreign, np.nan, ranking.standard_errors)
    names, first = ranking.names, int(order[0])
    collapsed = ranking.training is not None and bool(ranking.training.history.get("collapsed"))
    if collapsed:
        verdict = "Training collapsed: this order means nothing."
    elif len(ranking) == 1:
        verdict = f"{names[first]} is the only candidate."
    elif tied := _tied(ranking, order):
        verdict = f"{listed([names[first], *tied])} have the highest scores of {len(ranking):,} candidates."
    else:
        verdict = f"{names[first]} has the highest score of {len(ranking):,} candidates."
    context = {
        "kind": "Ranking of policies",
        "verdict": verdict,
        "tone": "bad" if collapsed else "open" if foreign[first] else "",
        "reasons": _reasons(ranking, order, foreign, true),
        "now": _now(ranking, order, foreign, collapsed),
        "notes": _notes(ranking, foreign),
        "main": _main(ranking, order, kinds, errors),
        "rows": _rows(ranking, order, kinds, errors, true, coverage or {}),
        "scores": Numbers(ranking.scores),
        "returns": Numbers([] if true is None else true),
        "has_returns": true is not None,
        "has_coverage": bool(coverage),
        "about_errors": _about_errors(ranking),
        **_evidence(ranking, true),
        "map": _map(ranking, order, kinds),
    }
    settings = dict(ranking.settings)
    if ranking.training is not None:
        own = ranking.training.settings
        settings |= {f"training_{name}": own[name] for name in (*_TRAINING, "seed") if name in own}
    return context, settings


def _tied(ranking: Ranking, order: np.ndarray) -> list[str]:
    """Return the candidates among the first 20 that do not score below the first with a probability of 90 %."""
    others = order[1 : figures.MOST_ROWS]
    wins = ranking.wins(np.full(len(others), order[0]), others)
    return [ranking.names[i] for i in others[wins < _SURE]]


def _reasons(ranking: Ranking, order: np.ndarray, foreign: np.ndarray, true: np.ndarray | None) -> list[str]:
    reasons = []
    if len(order) > 1:
        win = float(ranking.wins(order[:1], order[1:2])[0])
        second = ranking.names[order[1]]
        if tied := _tied(ranking, order):
            those = f"{len(tied) + 1} candidates" if len(tied) > 1 else "two"
            reasons.append(f"The scores of these {those} differ by less than the noise of drawing states.")
        elif np.isfinite(win):
            reasons.append(f"It scores above the next, {second}, with a probability of {chance(win)}.")
        else:
            reasons.append(f"The next is {second}.")
    if foreign[order[0]]:
        reasons.append("It acts unlike every known policy, so its score is an extrapolation.")
    if true is not None and len(order) > 1:
        correlation = number(spearman(true, ranking.scores))
        reasons.append(f"The scores have a rank correlation of {correlation} with the true returns.")
    return reasons


def _now(ranking: Ranking, order: np.ndarray, foreign: np.ndarray, collapsed: bool) -> str:
    if collapsed:
        return "Train again with another seed or more policies."
    best = [ranking.names[i] for i in order if not foreign[i]][:3]
    best += [ranking.names[i] for i in order[:1] if foreign[i]]
    if ranking.subset_scores is None:
        return f"Measure {listed(best)} by 20 episodes{' each' if len(best) > 1 else ''} before you deploy one."
    return (
        f"Scores order policies; they are not returns. Measure {listed(best)} by 20 episodes"
        f"{' each' if len(best) > 1 else ''}; or let select say whether to deploy one."
    )


def _notes(ranking: Ranking, foreign: np.ndarray) -> list[str]:
    notes = []
    if foreign.any():
        those = listed([ranking.names[i] for i in np.argsort(ranking.ranks) if foreign[i]])
        notes.append(f"Unlike every known policy: {those}. Measure before you believe these scores.")
    if ranking.foreign and any(one is None for one in ranking.foreign):
        notes.append("The distance of some candidates to the known policies is unknown: their scores may be wrong.")
    if ranking.in_training and any(ranking.in_training):
        notes.append("Some candidates act exactly as a training policy: their scores are no test of the model.")
    return notes


def _main(ranking: Ranking, order: np.ndarray, kinds: np.ndarray, errors: np.ndarray) -> figures.Picture:
    shown = order[: figures.MOST_ROWS]
    rows = [
        figures.Row(
            f"{ranking.ranks[i]}  {ranking.names[i]}",
            float(ranking.scores[i]),
            float(ranking.scores[i] - errors[i]),
            float(ranking.scores[i] + errors[i]),
            kinds[i],
        )
        for i in shown
    ]
    caption = "Scores with their standard errors" if np.isfinite(errors[shown]).any() else "Scores"
    caption += f", the first {len(shown)} of {len(ranking):,}." if len(shown) < len(ranking) else "."
    if (kinds[shown] == "foreign").any():
        caption += " Hollow: candidates that act unlike every known policy."
    known = None if ranking.training is None else ranking.training.scores
    return figures.intervals(rows, axis="score", caption=caption, known=known)


def _rows(
    ranking: Ranking,
    order: np.ndarray,
    kinds: np.ndarray,
    errors: np.ndarray,
    true: np.ndarray | None,
    coverage: Mapping[str, float],
) -> list[dict[str, Any]]:
    above = np.append(ranking.wins(order[:-1], order[1:]), np.nan)
    scores, nan = Numbers(ranking.scores), float("nan")
    distances = _limits(ranking)
    in_training = ranking.in_training or [False] * len(ranking)
    return [
        {
            "name": Name(ranking.names[i]),
            "kind": kinds[i],
            "rank": place,
            "score": float(ranking.scores[i]),
            "error": float(errors[i]),
            "error_text": f"± {scores(errors[i])}" if np.isfinite(errors[i]) else MISSING,
            "above": float(above[place - 1]),
            "true": nan if true is None else float(true[i]),
            "distance": float(distances[i]),
            "covered": coverage.get(ranking.names[i], nan),
            "remark": "foreign" if kinds[i] == "foreign" else "in training" if in_training[i] else "",
        }
        for place, i in enumerate(order.tolist(), 1)
    ]


def _about_errors(ranking: Ranking) -> str:
    if ranking.subset_scores is None:
        return "Errors and probabilities come from replicates, such as bootstrap samples or members of an ensemble."
    return (
        "Errors and probabilities cover the noise of drawing states only, not whether the model orders policies as "
        "their returns do. Distance is the mean squared distance of actions to the nearest known policy, over twice "
        "the upper quartile of these distances among the known policies. Above 1 a candidate is foreign."
    )


def _evidence(ranking: Ranking, true: np.ndarray | None) -> dict[str, Any]:
    evidence, pictures = [], []
    if true is not None:
        pictures.append(
            figures.scatter(
                ranking.scores,
                true,
                axes=("score", "true return"),
                caption="True returns over scores. A cloud that rises means that the order is right.",
            )
        )
    if ranking.training is None:
        evidence.append("This ranking keeps nothing of how its scores were made.")
        return {"evidence": evidence, "pictures": pictures}
    history, count = ranking.training.history, len(ranking.training.names)
    correlations = np.asarray(history.get("validation_rank_correlation", []), float)
    if len(correlations) > 1 and np.isfinite(correlations).any():
        best = history.get("best_step")
        kept = best if isinstance(best, int) and 0 <= best < len(correlations) else None
        what = "" if kept is None else f", {number(float(correlations[kept]))} at the step whose weights were kept"
        pictures.append(
            figures.curve(
                correlations,
                kept,
                caption=f"Rank correlation of scores and returns on validation policies{what}.",
            )
        )
        evidence.append(f"The model learned from {count} policies, and was validated on others.")
    else:
        evidence.append(
            f"The model learned from {count} policies. None were held out, so nothing here shows how well it ranks: "
            "evaluate does."
        )
    return {"evidence": evidence, "pictures": pictures}


def _limits(ranking: Ranking) -> np.ndarray:
    """Return the distances of the candidates to the nearest known policy over the limit, (P,); NaN if unknown."""
    if ranking.distances is None or not ranking.distance_limit:
        return np.full(len(ranking), np.nan)
    return ranking.distances / ranking.distance_limit


def _map(ranking: Ranking, order: np.ndarray, kinds: np.ndarray) -> figures.Picture | None:
    """Return a map of the known policies, the first candidates and those that are farthest from the known ones."""
    training, farthest = ranking.training, order[np.argsort(-np.nan_to_num(_limits(ranking)[order]), kind="stable")]
    if training is None or training.among is None or not ranking.distance_limit:
        return None
    rows = np.unique(np.append(order[: figures.MOST_ROWS], farthest[: figures.MOST_ROWS // 2]))
    known = np.arange(min(len(training.names), _MAPPED))
    across = training.distances[np.ix_(rows, known)]
    both = np.block([[training.between[np.ix_(known, known)], across.T], [across, training.among[np.ix_(rows, rows)]]])
    named = {*order[:3].tolist(), *(i for i in farthest[:3].tolist() if kinds[i] == "foreign")}
    return figures.policy_map(
        both,
        ["known"] * len(known) + kinds[rows].tolist(),
        [""] * len(known) + [f"{ranking.ranks[i]} {ranking.names[i]}" if i in named else "" for i in rows.tolist()],
        caption="Policies that act alike stand close together. Grey: known policies. Named: the first three "
        "candidates" + (" and foreign ones, which are hollow." if (kinds[rows] == "foreign").any() else "."),
    )
