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
        total += float(t_tail(ratio, count - 1).sum())
    return total


def t_tail(t: np.ndarray, degrees: int) -> np.ndarray:
    """Return the probabilities that Student's t exceeds `t`, by its finite series for whole degrees of freedom.

    Args:
        t: Numbers of 0 or more; NaN gives NaN.
        degrees: Degrees of freedom, 1 or more.
    """
    angle, odd = np.arctan(t / math.sqrt(degrees)), degrees % 2
    cosine = np.cos(angle)
    term, series = cosine if odd else np.ones_like(cosine), np.zeros_like(cosine)
    for i in range(2, degrees + 1 - odd, 2):
        series = series + term
        term = term * cosine**2 * (i / (i + 1) if odd else (i - 1) / i)
    inner = np.sin(angle) * series
    return np.maximum(0.0, (1 - (2 / math.pi * (angle + inner) if odd else inner)) / 2)
