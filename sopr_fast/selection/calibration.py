"""Extrapolation: what predictions may err more by, away from the known policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .compared import distance_ratios, typical_distance

_ERROR, _WEIGHT = 2.0, 2.0  # prior of the error far away, in units of the returns, and its weight


def extrapolation(
    distances: np.ndarray,
    known: np.ndarray,
    unit: float,
    groups: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]] = (),
) -> np.ndarray:
    """Return the covariance (P, P) of errors that known policies do not show when they are left out one by one.

    A policy whose distance ratio exceeds the median one of known policies by x errs by c x / (1 + x) more. Groups of
    known policies that are left out whole show c; the prior is 2 `unit`, and weighs as much as 2 policies far away.
    Errors of policies that act alike are alike. Known policies have none.

    Args:
        distances: (P, P) action distances.
        known: (M,) indices of the known policies.
        unit: Unit of returns, the spread of the known ones.
        groups: Known policies that are left out together, their errors, and the expected deviations of these.
    """
    count, typical = len(distances), typical_distance(distances, known)
    ratios, _ = distance_ratios(distances, known)
    usual = float(np.median(ratios[known])) if len(known) > 1 else 0.0
    scale, weight = _WEIGHT * (_ERROR * unit) ** 2, _WEIGHT
    for group, errors, deviations in groups:
        apart = distances[np.ix_(group, np.setdiff1d(known, group))].min(1) / typical
        scale += float((errors**2 - deviations**2).sum())
        weight += float((_share(apart - usual) ** 2).sum())
    ratios = np.where(np.isfinite(ratios), ratios, 0.0)
    deviation = np.sqrt(max(scale / weight, 0.0)) * _share(ratios - usual)
    deviation[known] = 0
    alike = np.exp(-np.sqrt(distances / typical))
    return deviation[:, None] * deviation * alike.reshape(count, count)


def _share(excess: np.ndarray) -> np.ndarray:
    excess = np.maximum(excess, 0)
    return excess / (1 + excess)
