"""The report of a ranking."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..results.numbers import chance, in_words, number
from ..results.ranking import Ranking
from ..results.tables import column
from . import figures
from .page import Table
from .plots import plot_ranking

_TRAINING = ("loss", "subset_size", "clusters", "subsets", "steps", "encoder", "width", "low_layers", "high_layers")


def ranking_page(ranking: Ranking) -> dict[str, Any]:
    """Return what the report says."""
    collapsed = ranking.training is not None and bool(ranking.training.history.get("collapsed"))
    settings = dict(ranking.settings)
    if ranking.training is not None:
        own = ranking.training.settings
        settings |= {f"training_{name}": own[name] for name in (*_TRAINING, "seed") if name in own}
    return dict(
        kind="Ranking of policies",
        headline="Training collapsed: this order means nothing." if collapsed else f"{ranking.headline}.",
        tone="bad" if collapsed else "open" if ranking.foreign[ranking.places[0]] else "",
        reasons=_reasons(ranking),
        now="Train again with another seed or more policies." if collapsed else _now(ranking),
        notes=[*getattr(ranking, "notes", []), *(doubt[0].upper() + doubt[1:] for doubt, _ in ranking.doubts)],
        main=_main(ranking),
        title="All candidates",
        tables=[_table(ranking)],
        legend="Errors and probabilities come from replicates, such as bootstrap samples or members of an ensemble."
        if ranking.subset_scores is None
        else "Errors and probabilities are over draws of states only: they do not say whether the model orders "
        "policies as their returns do. Distance is that of actions to the nearest known policy; a foreign candidate is "
        "farther from them than they usually are from each other.",
        evidence=_evidence(ranking),
        pictures=[],
        settings=settings,
    )


def _reasons(ranking: Ranking) -> list[str]:
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


def _now(ranking: Ranking) -> str:
    names, foreign = np.array(ranking.order, object), ranking.foreign[ranking.places]
    best = [*names[~foreign][:3], *names[:1][foreign[:1]]]
    measure = f"Measure {in_words(best)} by 20 episodes{' each' if len(best) > 1 else ''}"
    if ranking.subset_scores is None:
        return f"{measure} before you deploy one."
    return f"Scores order policies; they are not returns. {measure}; or let select say whether to deploy one."


def _main(ranking: Ranking) -> figures.Picture:
    shown = min(figures.ROWS, len(ranking))
    caption = f"Scores, the first {shown} of {len(ranking):,}." if shown < len(ranking) else "Scores."
    return figures.draw(lambda ax: plot_ranking(ranking, ax=ax, rows=figures.ROWS), caption)


def _table(ranking: Ranking) -> Table:
    places = ranking.places
    above = column("above the next", np.append(ranking.wins(places[:-1], places[1:]), np.nan), chance)
    kinds = np.where(ranking.foreign, "foreign", "candidate")[places].tolist()
    return Table("Candidates by score", [*ranking.cells(), above], kinds)


def _evidence(ranking: Ranking) -> list[str]:
    if ranking.training is None:
        return ["This ranking keeps nothing of how its scores were made."]
    history, learned = ranking.training.history, f"The model learned from {len(ranking.training.names)} policies"
    correlations, best = history.get("validation_rank_correlation", []), history.get("best_step")
    if isinstance(best, int) and 0 <= best < len(correlations):
        return [f"{learned}. On its validation policies it has a rank correlation of {number(correlations[best])}."]
    return [f"{learned}. None were held out, so nothing here shows how well it ranks: evaluate does."]
