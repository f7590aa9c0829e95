"""Errors of a simulator's values, from the values of its members."""

from __future__ import annotations

import numpy as np

from ..results.metrics import agreement

HONEST = 1.5  # errors, in standard deviations of the members
_SMOOTHED = 3.0  # members that the mean variance of policies that act alike counts as
_SHARED = 0.5  # share of the covariance that members show; the rest is that of policies that act alike
_LEAST = 0.3  # least deviation relative to others, as a share of the usual one


def member_errors(members: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Return the covariance (P, P) of the errors of the mean of members (P, M).

    Few members show a variance badly, so that of policies that act alike counts too, and only half of the covariance is
    what members show: the other half is that of errors which are alike where policies act `alike` (P, P), from 0 to 1.
    The members' agreement on the order is the share of the covariance that does not count.
    """
    counting = 1 - float(np.fmax(agreement(members), 0))
    deviations, variances, smooth = _variances(members, alike)
    scaled = deviations * np.sqrt(smooth / np.where(variances > 0, variances, 1))[:, None]
    shown = scaled @ scaled.T / (members.shape[1] - 1)
    return counting * HONEST**2 * (_SHARED * shown + (1 - _SHARED) * np.sqrt(np.outer(smooth, smooth)) * alike)


def relative_errors(members: np.ndarray, alike: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return deviations (P,) of the errors of the mean of members (P, M), relative to those of some policies."""
    smooth = _variances(members, alike)[2]
    smooth = smooth + _LEAST**2 * smooth.mean()
    usual = float(smooth[among].mean())
    return np.sqrt(smooth / usual) if usual > 0 else np.ones(len(smooth))


def _variances(members: np.ndarray, alike: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return deviations (P, M) of members from their mean, variances (P,), and smoothed variances (P,)."""
    count = members.shape[1] - 1
    deviations = members - members.mean(1, keepdims=True)
    variances = np.square(deviations).sum(1) / count
    usual = alike @ variances / alike.sum(1)
    return deviations, variances, (count * variances + _SMOOTHED * usual) / (count + _SMOOTHED)
