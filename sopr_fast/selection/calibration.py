"""Extrapolation: what predictions may err more by, where the simulator leaves the log."""

from __future__ import annotations

import numpy as np

from .compared import distance_ratios, typical_distance

_ERROR = 3.0  # standard deviation if every step is outside, at a distance ratio of 1, in units of the returns
_HIDDEN = 1 / 30  # root of the share of steps that are outside, though no single column shows it, at a ratio of 1


def extrapolation(distances: np.ndarray, known: np.ndarray, outside: np.ndarray, unit: float) -> np.ndarray:
    """Return the covariance (P, P) of errors that the M known policies do not show and do not have.

    Errors of simulated steps outside the log's range add up, so their variance is proportional to the share (P,) of
    such steps; some are outside without leaving the range of any column, the more the higher the distance ratio. The
    deviation, in units of returns, is also proportional to that ratio, which is 1 without known policies. Errors of
    policies that act alike are alike.
    """
    ratios, _ = distance_ratios(distances, known)
    ratios = np.nan_to_num(ratios, nan=1.0)
    deviation = _ERROR * unit * ratios * np.sqrt(outside + (_HIDDEN * ratios) ** 2)
    deviation[known] = 0
    return deviation[:, None] * deviation * np.exp(-np.sqrt(distances / typical_distance(distances, known)))
