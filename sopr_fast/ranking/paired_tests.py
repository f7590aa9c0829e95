"""Paired t-tests of scores by subset."""

from __future__ import annotations

import math

import numpy as np


def doubt(subset_scores: np.ndarray, top: int) -> float:
    """Return a bound on the probability that one of the first places is not the candidate's that holds it.

    Args:
        subset_scores: (P, S) scores by subset.
        top: Number of places.

    Returns:
        Sum of one-sided p-values; infinite for fewer than two subsets, 0.5 for each pair with equal scores.
    """
    from scipy.special import stdtr

    count = subset_scores.shape[1]
    order = (-subset_scores.mean(1)).argsort(kind="stable")
    if len(order) > 1 and count < 2:
        return math.inf
    total = 0.0
    for place in range(min(top, len(order) - 1)):
        gaps = subset_scores[order[place]] - subset_scores[order[place + 1 :]]
        mean, error = gaps.mean(1), gaps.std(1, ddof=1) / math.sqrt(count)
        ratio = np.where(mean > 0, np.inf, 0.0)
        np.divide(mean, error, out=ratio, where=(mean > 0) & (error > 0))
        total += float(stdtr(count - 1, -ratio).sum())
    return total
