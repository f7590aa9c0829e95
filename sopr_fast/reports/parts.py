"""Parts that several reports share: cells, methods tried on known policies, the map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from ..ranking.metrics import spearman
from . import figures
from .map import classical_scaling
from .page import Cell, Column, Figure, Paragraph, Table
from .svg import StyleSheet
from .text import MISSING, Name, chance, listed, number, percent, sentence

if TYPE_CHECKING:
    from ..selection import Evaluation

_NAMED = 8  # groups that have room on a map
KINDS = {"random": "left out at random", "group": "left out as a group"}
_HELP = {
    "spearman": "Rank correlation of values and returns: 1 is the right order, 0 none.",
    "kendall": "Share of pairs in the right order minus that of pairs in the wrong one.",
    "gap accuracy": "Right minus wrong pairs, each weighed by its difference in return.",
    "regret@1": "What the choice of the best value loses, of the range of returns.",
    "regret@3": "What the best of three choices loses, of the range of returns.",
}


COVERED = Column("covered by the log", help="Share of logged states in which the policy acts as the log does nearby.")
ABOUT_COVERAGE = (
    "Covered by the log: the share of logged states in which a policy acts as the log does nearby; estimates from the "
    "log extrapolate in the others."
)


def flag(text: str, *, warn: bool = False) -> Markup:
    """Return a flag beside a policy."""
    return Markup('<span class="flag{}">{}</span>').format(Markup(" warn") if warn else "", Name(text))


def finite(value: float) -> float | None:
    """Return a number to sort by, None where it is undefined."""
    return float(value) if np.isfinite(value) else None


def name_cell(name: str) -> Cell:
    """Return the cell of a name."""
    return Cell(Name(name), name)


def number_cell(value: float, decimals: int = 2) -> Cell:
    """Return the cell of a number."""
    return Cell(number(value, decimals), finite(value))


def share_cell(value: float) -> Cell:
    """Return the cell of a share."""
    return Cell(percent(value), finite(value))


Measures = dict[str, dict[str, dict[str, tuple[float, float, float]]]]  # kind of folds -> method -> measure


def all_measures(evaluation: Evaluation) -> Measures:
    """Return the measures of every method on every kind of folds."""
    return {kind: evaluation.measures(kind) for kind in evaluation.kinds}


def chance_cell(value: float) -> Cell:
    """Return the cell of a probability."""
    return Cell(chance(value), finite(value))


def order_of_methods(by_kind: Measures, kind: str | None = None) -> list[str]:
    """Return methods by their rank correlation on a kind of folds, by default the last, the best first."""
    measures = by_kind[kind or list(by_kind)[-1]]
    return sorted(measures, key=lambda method: -np.nan_to_num(measures[method]["spearman"][0], nan=-2))


def tried_methods(
    evaluation: Evaluation, by_kind: Measures, styles: StyleSheet, extra: dict[str, dict[str, Cell]]
) -> list[Any]:
    """Return figure and tables of what every method made of policies that it had not learned from.

    Args:
        evaluation: The results.
        by_kind: Their measures.
        styles: Style sheet of the page.
        extra: Further columns: head -> method -> cell.
    """
    from ..selection.evaluation import MEASURES

    order = order_of_methods(by_kind)
    spearmans = {
        KINDS[kind]: {method: measures[method]["spearman"] for method in order} for kind, measures in by_kind.items()
    }
    drawing = figures.methods(
        spearmans, styles, title="Rank correlation of every method on left-out policies", axis="rank correlation"
    )
    caption = (
        "Rank correlation of each method's values with the known returns, for policies that it had not learned from"
    )
    caption += ", with 90 % intervals. 1 is the right order, 0 none."
    if len(by_kind) > 1:
        caption += " Filled: candidates like the known policies. Hollow: candidates of another origin."
    blocks: list[Any] = [Figure(drawing, caption)]
    for kind, measures in by_kind.items():
        folds = [fold for fold in evaluation.folds if fold.kind == kind]
        title = {
            "random": f"Candidates like the known policies: {len(folds)} random folds left out in turn",
            "group": f"Candidates of another origin: each of {len(folds)} groups left out in turn",
        }[kind]
        last = kind == evaluation.kinds[-1]
        columns = [Column("method", numeric=False)]
        for name in MEASURES:
            columns += [Column(name, help=_HELP[name])] + ([Column("90 % interval")] if name == "spearman" else [])
        columns += [Column(head) for head in extra] if last else []
        rows = []
        for method in order_of_methods(by_kind, kind):
            cells = [name_cell(method)]
            for name in MEASURES:
                mean, low, high = measures[method][name]
                cells.append(number_cell(mean))
                if name == "spearman":
                    text = f"{number(low)} to {number(high)}" if np.isfinite(low) else MISSING
                    cells.append(Cell(text, finite(low)))
            cells += [column[method] for column in extra.values()] if last else []
            rows.append(cells)
        blocks.append(Table(title, columns, rows))
    blocks.append(
        Paragraph(
            "Gap accuracy weighs each pair of policies by its difference in return: 1 means that all pairs are right, "
            "−1 that all are wrong. Regret@k is what the best of k choices loses, as a share of the range of returns.",
            note=True,
        )
    )
    if evaluation.dropped:
        reasons = [sentence("{} was dropped: {}.", Name(m), why) for m, why in evaluation.dropped.items()]
        blocks.append(Paragraph(Markup(" ").join(reasons), note=True))
    return blocks


def values_and_returns(evaluation: Evaluation, order: Sequence[str], styles: StyleSheet) -> Figure:
    """Return a figure of every method's values of left-out policies beside their returns."""
    panels = []
    for method in order:
        values = left_out_values(evaluation, method)
        tested = np.isfinite(values)
        values, returns = values[tested], evaluation.returns[tested]
        panels.append((method, values, returns, spearman(values, returns)))
    drawing = figures.values_and_returns(
        panels, styles, title="Returns over values of every method", axis="known return"
    )
    return Figure(
        drawing,
        "Each dot is a known policy, valued by a model that had not learned from it: the method's value to the right, "
        "in its own units, the known return upward. A cloud that rises means that the order is right. The number is "
        "the rank correlation over all folds. Of a policy in several folds, the mean value is shown.",
    )


def left_out_values(evaluation: Evaluation, method: str) -> np.ndarray:
    """Return (M,) mean values of policies over the folds of the first kind that tested them; NaN where none did."""
    total, count = np.zeros((2, len(evaluation.names)))
    for fold, part in zip(evaluation.folds, evaluation.values[method], strict=True):
        if fold.kind == evaluation.kinds[0]:
            total[fold.test] += part
            count[fold.test] += 1
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


def map_figure(
    distances: np.ndarray,
    known: np.ndarray,
    foreign: np.ndarray,
    numbers: Sequence[int],
    groups: Sequence[str],
    styles: StyleSheet,
) -> Figure | None:
    """Return a map of policies by action distance; None where distances are unknown or too few to map.

    Args:
        distances: (P, P) action distances; policies without are left out.
        known: (P,) bool.
        foreign: (P,) bool.
        numbers: Number of each candidate, 0 for known policies.
        groups: Group of each policy; written on the map if there are several, but few.
        styles: Style sheet of the page.
    """
    kept = np.isfinite(distances).sum(1) > 1
    kept &= np.isfinite(distances[:, kept]).all(1)
    if kept.sum() < 3:
        return None
    places, shown = classical_scaling(distances[np.ix_(kept, kept)])
    rows = np.flatnonzero(kept).tolist()
    named = 1 < len({groups[i] for i in rows if known[i]}) <= _NAMED
    drawing = figures.policy_map(
        places,
        known[kept],
        foreign[kept],
        [numbers[i] for i in rows],
        [groups[i] if named else "" for i in rows],
        styles,
        title="Map of policies by action distance",
    )
    caption = "Policies that act alike stand close together (classical scaling of the action distances"
    caption += f"; the plane shows {percent(shown)} of the variance)."
    if not known.all():
        caption += " Grey: known policies. Numbers: candidates, by rank."
    if foreign.any():
        caption += " Hollow: foreign candidates."
    return Figure(drawing, caption)


def left_out_groups(evaluation: Evaluation) -> Markup:
    """Return the names of the groups that were left out."""
    return listed([fold.name for fold in evaluation.folds if fold.kind == "group"])
