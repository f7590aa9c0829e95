"""Extrapolation: what predictions may err more by, away from the known policies."""

from __future__ import annotations

import numpy as np

from .compared import distance_ratios, typical_distance

_ERROR = 2.0  # standard deviation of the error far away, in units of the returns


def extrapolation(distances: np.ndarray, known: np.ndarray, unit: float) -> np.ndarray:
    """Return the covariance (P, P) of errors that known policies do not show when they are left out one by one.

    A policy whose distance ratio exceeds the median one of known policies by x errs by 2 x / (1 + x) `unit` more.
    Errors of policies that act alike are alike. Known policies have none.

    Args:
        distances: (P, P) action distances.
        known: (M,) indices of the known policies.
        unit: Unit of returns, see `Posterior`.
    """
    ratios, _ = distance_ratios(distances, known)
    usual = float(np.median(ratios[known])) if len(known) > 1 else 0.0
    excess = np.maximum(np.where(np.isfinite(ratios), ratios, 0.0) - usual, 0)
    deviation = _ERROR * unit * excess / (1 + excess)
    deviation[known] = 0
    return deviation[:, None] * deviation * np.exp(-np.sqrt(distances / typical_distance(distances, known)))
