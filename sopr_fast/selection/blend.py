"""Weights of the panel's columns, inside the known region and outside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from ..ranking.metrics import spearman
from .groups import Placement
from .posterior import Design


@dataclass(frozen=True)
class Recipe:
    """How the outside weights are made from correlations within groups.

    Attributes:
        power: Power of the correlation.
        caution: Standard errors subtracted from the correlation.
        agreement: Power of a column's correlation with the weighted mean of the others on the candidates.
        uniform: Share of the weight that all columns get alike.
        lone: The same where only one group is large enough for a correlation and a column was learned from known
            returns: within one group such a column has an advantage that other groups may not show.
        least: Policies that a group needs for a correlation.
    """

    power: float = 2.0
    caution: float = 2.0
    agreement: float = 1.0
    uniform: float = 0.0
    lone: float = 0.0
    least: int = 4


@dataclass(frozen=True, eq=False)
class Weights:
    """Outside weights and what they rest on.

    Attributes:
        methods: (m,) estimators whose columns are used.
        outside: (m,) weights of the columns for foreign candidates; sum 1.
        within: (m,) mean Spearman correlation with the returns within groups.
        agreement: (m,) correlation with the weighted mean of the other columns on the candidates; NaN for fewer than
            five candidates, and where the others have no weight.
        slope: Correlation within groups of the weighted mean itself, at least 0; 0 if no column earns a weight.
        unused: Estimator -> reason why its column is not used.
    """

    methods: list[str]
    outside: np.ndarray
    within: np.ndarray
    agreement: np.ndarray
    slope: float
    unused: dict[str, str]


def ranks(values: np.ndarray) -> np.ndarray:
    """Rank each column from 0 to 1; equal values share their mean rank, and NaN gets 0.5.

    Args:
        values: (P, m) values.

    Returns:
        (P, m) float64 ranks.
    """
    result = np.full(values.shape, 0.5)
    for column, target in zip(values.T, result.T, strict=True):
        finite = np.isfinite(column)
        _, inverse, counts = np.unique(column[finite], return_inverse=True, return_counts=True)
        if len(counts) > 1:
            target[finite] = (counts.cumsum() - (counts + 1) / 2)[inverse] / (finite.sum() - 1)
    return result


def within_correlations(columns: np.ndarray, returns: np.ndarray, groups: Sequence[str], least: int) -> np.ndarray:
    """Compute each column's Spearman correlation with the returns within each group.

    Args:
        columns: (M, m) values or ranks.
        returns: (M,) returns.
        groups: (M,) group labels.
        least: Policies that a group needs; if no group is large enough, all policies form one.

    Returns:
        (G, m) correlations, 0 where undefined, with the (G,) group sizes as the last column. A group whose returns are
        all equal is left out.
    """
    labels = np.asarray(groups, dtype=object)
    members = [np.flatnonzero(labels == label) for label in dict.fromkeys(groups)]
    members = [rows for rows in members if len(rows) >= least and np.ptp(returns[rows]) > 0]
    if not members and np.ptp(returns) > 0:
        members = [np.arange(len(returns))]
    table = [
        [*(spearman(columns[rows, j], returns[rows]) for j in range(columns.shape[1])), len(rows)] for rows in members
    ]
    return np.nan_to_num(np.array(table).reshape(len(members), columns.shape[1] + 1))


def outside_weights(correlations: np.ndarray, candidates: np.ndarray, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Weigh columns by their correlation with the returns within groups and their agreement on the candidates.

    Args:
        correlations: (G, m + 1), see `within_correlations`.
        candidates: (C, m) ranks of the candidates.
        recipe: Powers and shrinkage.

    Returns:
        (m,) weights that sum to 1, or all 0 if no column earns one; (m,) agreement.
    """
    rho, sizes = correlations[:, :-1], correlations[:, -1:]
    weights = np.zeros(candidates.shape[1])
    if len(rho):
        error = np.sqrt(((1 - rho**2) ** 2 / (sizes - 1)).sum(0)) / len(rho)
        weights = np.maximum(rho.mean(0) - recipe.caution * error, 0) ** recipe.power
        if weights.sum() == 0:  # no column is sure: take those that are likely
            weights = np.maximum(rho.mean(0) - error / 2, 0) ** recipe.power
    agreement = np.full(len(weights), np.nan)
    if weights.sum() > 0:
        weights /= weights.sum()
        weights = (1 - recipe.uniform) * weights + recipe.uniform / len(weights)
        if len(candidates) >= 5:
            agreement = _agreement(weights, candidates)
            agreeing = weights * np.maximum(np.nan_to_num(agreement, nan=1.0), 0) ** recipe.agreement
            weights = agreeing / agreeing.sum() if agreeing.sum() > 0 else weights
    return weights, agreement


def _agreement(weights: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Correlate each column with the weighted mean of the others; NaN where the others have no weight."""
    centered = columns - columns.mean(0)
    norms = np.sqrt((centered**2).sum(0))
    centered = centered / np.where(norms > 0, norms, 1)
    others = (centered @ weights)[:, None] - centered * weights
    size = np.sqrt((others**2).sum(0))
    return np.where(size > 1e-9, (centered * others).sum(0) / np.where(size > 1e-9, size, 1), np.nan)


def blend(placement: Placement, recipe: Recipe | None = None) -> tuple[Design, Weights]:
    """Weigh the columns of a panel and prepare the posterior.

    The score of the outside weights uses the columns cross-fitted by group, the effects of single columns those
    cross-fitted by random folds.

    Args:
        placement: The panel with groups and gate.
        recipe: Powers and shrinkage; the defaults of `Recipe` if None.
    """
    recipe = recipe or Recipe()
    panel, known = placement.panel, placement.panel.known
    unused = {}
    for method, values in panel.columns.items():
        finite = np.isfinite(values) & np.isfinite(panel.grouped_columns[method])
        if finite.sum() < (len(panel) + 1) // 2:
            unused[method] = f"only {finite.sum()} of {len(panel)} values are finite"
        elif np.ptp(values[finite]) == 0:
            unused[method] = "all values are equal"
    methods = [method for method in panel.columns if method not in unused]
    count = len(panel)
    grouped = ranks(np.array([panel.grouped_columns[method] for method in methods]).reshape(-1, count).T)
    pooled = ranks(np.array([panel.columns[method] for method in methods]).reshape(-1, count).T)
    groups = [group for group, is_known in zip(panel.groups, known, strict=True) if is_known]
    correlations = within_correlations(grouped[known], panel.returns[known], groups, recipe.least)
    if len(correlations) == 1 and panel.supervised.intersection(methods):
        recipe = replace(recipe, uniform=max(recipe.uniform, recipe.lone))
    weights, agreement = outside_weights(correlations, grouped[~known], recipe)
    score = grouped @ weights
    slope = 0.0
    if np.ptp(score, axis=0) > 0:
        blended = within_correlations(score[known, None], panel.returns[known], groups, recipe.least)
        slope = max(0.0, float(blended[:, 0].mean())) if len(blended) else 0.0
    within = correlations[:, :-1].mean(0) if len(correlations) else np.zeros(len(methods))
    distances = None
    if np.isfinite(panel.distances).all():
        distances = panel.distances / _typical(panel.distances[np.ix_(known, known)])
    score = _standardise(score[:, None])[:, 0]
    normal = _standardise(_normal(pooled, count))
    design = Design(
        score,
        normal - np.outer(score, score @ normal) / count,  # single columns explain what the score does not
        placement.gate,
        placement.membership,
        distances,
        slope,
    )
    return design, Weights(methods, weights, within, agreement, slope, unused)


def _typical(distances: np.ndarray) -> float:
    """Return the median distance to the nearest other policy, or that of any two policies if it is 0."""
    nearest = (distances + np.where(np.eye(len(distances), dtype=bool), np.inf, 0)).min(1)
    positive = distances[distances > 0]
    return float(np.median(nearest)) or (float(np.median(positive)) if len(positive) else 1.0)


def _normal(columns: np.ndarray, count: int) -> np.ndarray:
    """Turn ranks into normal scores."""
    table = (columns * (count - 1) + 0.5) / count
    return np.vectorize(NormalDist().inv_cdf, otypes=[float])(table) if table.size else table


def _standardise(columns: np.ndarray) -> np.ndarray:
    deviation = columns.std(0)
    return (columns - columns.mean(0)) / np.where(deviation > 1e-12, deviation, 1)
