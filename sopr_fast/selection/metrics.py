"""Quality of predictions: gap-weighted accuracy and risk-coverage curves."""

from __future__ import annotations

from typing import Any

import numpy as np


def gap_accuracy(returns: Any, scores: Any, errors: Any = 0.0) -> float:
    """Compute the gap-weighted pair accuracy of scores.

    Each pair of policies counts by its gap in return: +gap if the scores order it as the returns do, -gap if the other
    way round, 0 if the scores are equal. Pairs whose gap is within the standard error of the difference of their
    returns are ties and do not count.

    Args:
        returns: (n,) returns.
        scores: (n,) scores; larger is better.
        errors: (n,) standard errors of the returns, or one for all.

    Returns:
        A number from -1 (every pair wrong) to 1 (every pair right); NaN if all pairs are ties.
    """
    returns, scores = np.asarray(returns, float), np.asarray(scores, float)
    errors = np.broadcast_to(np.asarray(errors, float), returns.shape)
    first, second = np.triu_indices(len(returns), 1)
    gap = returns[first] - returns[second]
    gap = np.where(np.abs(gap) > np.hypot(errors[first], errors[second]), gap, 0)
    total = np.abs(gap).sum()
    return float(gap @ np.sign(scores[first] - scores[second]) / total) if total > 0 else float("nan")


def risk_coverage(confidence: Any, risk: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Compute the risk-coverage curve of answers that may be withheld.

    Args:
        confidence: (n,) confidence in each answer; the least confident are withheld first.
        risk: (n,) risk of each answer, such as its regret.

    Returns:
        Coverage (n,), the share of answers that are given; (n,) mean risk of those given, where answers of equal
        confidence share the mean of theirs; and the area under the curve (mean of the risks).
    """
    confidence, risk = np.asarray(confidence, float), np.asarray(risk, float)
    if len(risk) == 0:
        raise ValueError("risk_coverage needs at least one answer")
    _, tie = np.unique(-confidence, return_inverse=True)
    shared = (np.bincount(tie, risk) / np.bincount(tie))[tie]
    count = np.arange(1, len(risk) + 1)
    curve = np.cumsum(shared[np.argsort(-confidence, kind="stable")]) / count
    return count / len(risk), curve, float(curve.mean())
