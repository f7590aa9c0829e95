"""The report of a ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from ..inputs.returns import check_returns
from ..ranking.metrics import regret_at_k, spearman
from ..ranking.ranking import DRAWN, GIVEN, Ranking
from . import figures
from .page import Cell, Column, Figure, Page, Paragraph, Section, Table
from .parts import ABOUT_COVERAGE, COVERED, chance_cell, finite, flag, map_figure, name_cell, number_cell, share_cell
from .settings import settings_section
from .svg import StyleSheet
from .text import MISSING, Name, Numbers, chance, number, sentence, spread

_KEPT = ("loss", "subset_size", "clusters", "subsets", "steps", "encoder", "width", "low_layers", "high_layers", "seed")


def ranking_page(
    ranking: Ranking,
    *,
    returns: Any,
    coverage: Mapping[str, float] | None,
    command: str | None,
    date: str | None,
) -> Page:
    """Return the page of a ranking.

    Args:
        ranking: The ranking.
        returns: True returns of the candidates, or None.
        coverage: Share of logged states in which each candidate acts as the log does, or None.
        command: Command that makes the report again, or None.
        date: Date to print, or None.
    """
    styles = StyleSheet()
    true = None if returns is None else check_returns(returns, ranking.names)
    training = ranking.training
    order = "Candidates by score" if training is None else "Candidates among the known policies"
    sections = [
        Section("order", order, _order(ranking, true, styles)),
        Section("wins", "Who scores above whom", _wins(ranking)),
        Section("evidence", "Why to believe it", _evidence(ranking, true, styles)),
    ]
    if training is not None or ranking.distances is not None:
        blocks = _distances(ranking, coverage or {}, styles)
        sections.append(Section("distance", "How the candidates differ from the known policies", blocks))
    settings = dict(ranking.settings)
    if training is not None:
        settings |= {f"training_{name}": training.settings[name] for name in _KEPT if name in training.settings}
    lines = [_call(ranking.settings)] if "source" in ranking.settings else []
    sections.append(settings_section(settings, command, [*lines, 'ranking.report("report.html")']))
    first = _best_first(ranking)[0]
    doubtful = bool(_foreign(ranking)[first])
    return Page(
        title="Ranking of policies",
        verdict=_head(ranking, first, doubtful),
        tone="open" if doubtful or _collapsed(ranking) else "good",
        reason=_reason(ranking, first, doubtful),
        facts=_facts(ranking, true),
        sections=sections,
        styles=styles,
        date=date,
        notes=_notes(ranking),
    )


def _best_first(ranking: Ranking) -> list[int]:
    """Return the places of the candidates in the ranking, in the order of their ranks."""
    return np.argsort(ranking.ranks).tolist()


def _foreign(ranking: Ranking) -> np.ndarray:
    return np.array([bool(foreign) for foreign in ranking.foreign or [False] * len(ranking)], bool)


def _collapsed(ranking: Ranking) -> bool:
    return ranking.training is not None and bool(ranking.training.history.get("collapsed"))


def _noise(ranking: Ranking) -> str:
    """Return over what scores vary, as the end of a phrase; empty where that is unknown."""
    if ranking.subset_scores is not None:
        return " over draws of states"
    return "" if ranking.replicates is None else " over replicates (bootstraps or members of an ensemble)"


def _call(settings: dict[str, Any]) -> str:
    """Return the call of `rank` that gives a ranking with these settings again."""
    source = settings["source"]
    arguments = ["candidates", *(["states"] if source == DRAWN else []), "model=model"]
    arguments.append("subsets=subsets" if source == GIVEN else f"subsets={settings['subsets']}")
    arguments += [f"seed={settings['seed']}"] if source == DRAWN else []
    return f"ranking = sopr_fast.rank({', '.join(arguments)})"


def _head(ranking: Ranking, first: int, doubtful: bool) -> Markup:
    name = Name(ranking.names[first])
    if _collapsed(ranking):
        return sentence("Training collapsed: this order means nothing.")
    if doubtful:
        return sentence("{} has the highest score, but acts unlike every known policy: measure it first.", name)
    if len(ranking) == 1:
        return sentence("{} is the only candidate.", name)
    return sentence("{} has the highest score of {} candidates.", name, str(len(ranking)))


def _reason(ranking: Ranking, first: int, doubtful: bool) -> Markup:
    order = _best_first(ranking)
    text = Markup("")
    if len(order) > 1:
        wins = float(ranking.win_probability[first, order[1]])
        second = Name(ranking.names[order[1]])
        if np.isfinite(wins):
            text += sentence(
                "It scores above the next, {}, with a probability of {}{}. ", second, chance(wins), _noise(ranking)
            )
        else:
            text += sentence("The next is {}. ", second)
    if doubtful:
        known = [i for i in order if not _foreign(ranking)[i]]
        if known:
            text += sentence("The first that acts like known policies is {}. ", Name(ranking.names[known[0]]))
    if ranking.subset_scores is None:
        return text.rstrip()
    return text + sentence("Scores order policies; they are not returns.")


def _facts(ranking: Ranking, true: np.ndarray | None) -> list[tuple[str, Any]]:
    known = "" if ranking.training is None else f", {len(ranking.training.names)}"
    facts: list[tuple[str, Any]] = [("candidates" + (", known policies" if known else ""), f"{len(ranking)}{known}")]
    if ranking.foreign is not None:
        facts.append(("foreign candidates", str(int(_foreign(ranking).sum()))))
    if ranking.subset_scores is not None:
        facts.append(("subsets of states", str(ranking.subset_scores.shape[1])))
    if true is not None and len(ranking) > 1:
        facts.append(("rank correlation with the true returns", number(spearman(true, ranking.scores), 3)))
        k = min(3, len(ranking))
        facts.append((f"regret@{k}", number(regret_at_k(returns=true, scores=ranking.scores, k=k), 3)))
    return facts


def _notes(ranking: Ranking) -> list[Any]:
    notes = []
    if ranking.settled is False:
        notes.append("The first ranks were not settled when the largest number of subsets was reached.")
    if ranking.foreign and any(foreign is None for foreign in ranking.foreign):
        notes.append(
            "The distance of some candidates to the known policies is unknown: their scores may be extrapolations."
        )
    if ranking.in_training and any(ranking.in_training):
        notes.append(
            "Some candidates act exactly as a policy that the model learned from: their scores are no test of it."
        )
    return notes


def _order(ranking: Ranking, true: np.ndarray | None, styles: StyleSheet) -> list[Any]:
    foreign, known = _foreign(ranking), np.zeros(0) if ranking.training is None else ranking.training.scores
    errors = np.where(foreign, np.nan, ranking.standard_errors)
    true_texts = [""] * len(ranking) if true is None else [*map(Numbers(true), true)]
    shown = _best_first(ranking)[: figures.MOST_ROWS]
    dots = [
        figures.Dot(
            f"{ranking.ranks[i]}  {ranking.names[i]}",
            float(ranking.scores[i]),
            float(ranking.scores[i] - errors[i]),
            float(ranking.scores[i] + errors[i]),
            bool(foreign[i]),
            true_texts[i],
        )
        for i in shown
    ]
    drawing = figures.intervals(
        dots,
        styles,
        title="Scores of the candidates" + (" among those of the known policies" if len(known) else ""),
        axis="score (± standard error)",
        rug=known if len(known) else None,
        rug_label=f"{len(known)} known policies",
    )
    caption = f"Scores with their standard errors{_noise(ranking)}"
    caption += ", beside the scores of the known policies." if len(known) else "."
    if foreign[shown].any():
        caption += " Hollow: foreign candidates, whose error is unknown."
    if true is not None:
        caption += " On the right: true returns."
    if len(ranking) > len(shown):
        caption += f" The first {len(shown)} of {len(ranking)}; the table has all."
    return [Figure(drawing, caption), _order_table(ranking, true, errors)]


def _order_table(ranking: Ranking, true: np.ndarray | None, errors: np.ndarray) -> Table:
    """Return a table of candidates and known policies; `errors` (P,) are NaN where they are not to be shown."""
    foreign, training = _foreign(ranking), ranking.training
    known = np.zeros(0) if training is None else training.scores
    numbers = Numbers(np.append(ranking.scores, known))
    true_cells: list[list[Cell]] = [[] for _ in ranking.names]
    if true is not None:
        shown = Numbers(true)
        true_cells = [[Cell(shown(value), float(value))] for value in true]
    entries: list[tuple[float, list[Cell], str]] = []
    for i, name in enumerate(ranking.names):
        marks = [flag("foreign", warn=True)] if foreign[i] else []
        if ranking.in_training is not None and ranking.in_training[i]:
            marks.append(flag("in training", warn=True))
        cells = [
            name_cell(name),
            Cell(str(ranking.ranks[i]), int(ranking.ranks[i])),
            Cell(numbers(ranking.scores[i]), finite(ranking.scores[i])),
            Cell(spread(errors[i], numbers), finite(errors[i])),
            *true_cells[i],
            Cell(Markup("").join(marks), "foreign" if foreign[i] else ""),
        ]
        entries.append((float(ranking.scores[i]), cells, "foreign" if foreign[i] else "candidate"))
    for name, score in zip([] if training is None else training.names, known, strict=True):
        cells = [
            name_cell(name),
            Cell(""),
            Cell(numbers(score), finite(score)),
            Cell(MISSING),
            *([] if true is None else [Cell("")]),
            Cell(flag("known"), "known"),
        ]
        entries.append((float(score), cells, "known"))
    entries.sort(key=lambda entry: -entry[0])
    error_help = "Noise of drawing states alone; unknown for foreign candidates."
    if ranking.subset_scores is None:
        error_help = f"Spread{_noise(ranking)}." if ranking.replicates is not None else ""
    columns = [
        Column("policy", numeric=False),
        Column("rank", help="1: the best candidate."),
        Column("score"),
        Column("standard error", help=error_help),
        *([Column("true return")] if true is not None else []),
        Column("flags", numeric=False),
    ]
    rows, kinds = [cells for _, cells, _ in entries], [kind for *_, kind in entries]
    return Table("All policies, the highest score first", columns, rows, kinds)


def _wins(ranking: Ranking) -> list[Any]:
    order = _best_first(ranking)
    wins = ranking.win_probability
    rows = []
    for place, i in enumerate(order):
        after = order[place + 1] if place + 1 < len(order) else None
        rows.append(
            [
                name_cell(ranking.names[i]),
                Cell(str(place + 1), place + 1),
                Cell(Name(ranking.names[after]) if after is not None else MISSING),
                chance_cell(float("nan") if after is None else float(wins[i, after])),
                chance_cell(float(wins[order[0], i]) if place else float("nan")),
            ]
        )
    columns = [
        Column("candidate", numeric=False),
        Column("rank"),
        Column("next", numeric=False),
        Column("scores above the next"),
        Column("the first scores above it"),
    ]
    text = f"Probabilities{_noise(ranking)}. They say how firm the order of scores is, "
    if ranking.subset_scores is None:
        text += "not whether it is the order of returns. Policies without a standard error have none."
    else:
        text += (
            "not whether the model orders policies as their returns do. Foreign candidates have none. A ranking "
            "predicts no returns, so it cannot say who beats an incumbent: select does."
        )
    return [Paragraph(text), Table("How firm the order is", columns, rows)]


def _evidence(ranking: Ranking, true: np.ndarray | None, styles: StyleSheet) -> list[Any]:
    training = ranking.training
    blocks: list[Any] = []
    if true is not None and len(ranking) > 1:
        correlation = number(spearman(true, ranking.scores), 3)
        text = "The scores have a rank correlation of {} with the true returns of these candidates"
        if ranking.in_training is not None and not any(ranking.in_training):
            text += ", which the model has not seen"
        blocks.append(Paragraph(sentence(text + ".", correlation)))
    if training is None:
        return [*blocks, Paragraph("This ranking keeps nothing of how its scores were made.")]
    history = training.history
    correlations = np.asarray(history.get("validation_rank_correlation", []), float)
    best = history.get("best_step")
    if len(correlations) > 1 and np.isfinite(correlations).any():
        mark = None
        if isinstance(best, int) and 0 <= best < len(correlations):
            mark = (best + 1, f"kept: {number(float(correlations[best]))}")
        drawing = figures.curve(
            correlations, styles, title="Rank correlation on validation policies", axis="rank correlation", mark=mark
        )
        caption = "Rank correlation of scores and returns on validation policies, which the model did not learn from."
        blocks.append(Figure(drawing, caption + " The weights of the marked step were kept."))
    else:
        blocks.append(
            Paragraph("No policies were held out to validate the model, so nothing here shows how well it ranks.")
        )
    state = "collapsed: the order means nothing" if history.get("collapsed") else "did not collapse"
    blocks.append(
        Paragraph(
            sentence(
                "The model learned from {} policies; training {}. To learn how well this and other methods rank your "
                "policies, leave some of them out: evaluate does.",
                str(len(training.names)),
                state,
            )
        )
    )
    return blocks


def _distances(ranking: Ranking, coverage: Mapping[str, float], styles: StyleSheet) -> list[Any]:
    training, foreign = ranking.training, _foreign(ranking)
    if training is None or ranking.distances is None:
        return [Paragraph("The distances of these candidates to known policies are unknown.")]
    blocks: list[Any] = []
    count = len(training.names)
    if training.among is not None:
        both = np.block([[training.between, training.distances.T], [training.distances, training.among]])
        known = np.arange(len(both)) < count
        figure = map_figure(
            both, known, np.append(np.zeros(count, bool), foreign), [0] * count + ranking.ranks.tolist(),
            [""] * len(both), styles,
        )  # fmt: skip
        blocks += [figure] if figure else []
    limit = ranking.distance_limit or float("nan")
    rows, kinds = [], []
    for i in _best_first(ranking):
        distance = float(ranking.distances[i])
        nearest = training.names[int(training.distances[i].argmin())] if np.isfinite(distance) else ""
        rows.append(
            [
                name_cell(ranking.names[i]),
                Cell(str(ranking.ranks[i]), int(ranking.ranks[i])),
                Cell(Name(nearest) if nearest else MISSING, nearest),
                number_cell(distance, 4),
                number_cell(distance / limit if limit > 0 else float("nan")),
                *([share_cell(coverage.get(ranking.names[i], float("nan")))] if coverage else []),
            ]
        )
        kinds.append("foreign" if foreign[i] else "candidate")
    columns = [
        Column("candidate", numeric=False),
        Column("rank"),
        Column("nearest known policy", numeric=False),
        Column("action distance"),
        Column("over the limit", help="Above 1 the candidate is foreign."),
        *([COVERED] if coverage else []),
    ]
    blocks.append(Table("Candidates and the known policies nearest to them", columns, rows, kinds))
    blocks.append(
        Paragraph(
            sentence(
                "The action distance is the mean squared distance of actions. Beyond the limit, {}, a candidate is "
                "foreign: twice the upper quartile of the distances from each known policy to its nearest other.",
                number(limit, 4),
            ),
            note=True,
        )
    )
    unknown = (
        "How much of the log the candidates act like is not stated: rank with --log FILE, or pass coverage=… here."
    )
    blocks.append(Paragraph(ABOUT_COVERAGE if coverage else unknown, note=True))
    return blocks
