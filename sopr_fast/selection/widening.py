"""Wider intervals where neither the log nor known returns show what policies do."""

from __future__ import annotations

import numpy as np

from ..estimators.log_support import MOST_UNSUPPORTED
from ..estimators.member_errors import HONEST

_WIDENED = 1.5  # deviation where the log does not show what a policy does, in units of the returns
_FULLY = 0.5  # share of decisions from which it is as large as that
_COMMON = 0.5  # share of this variance that is common to such policies, whatever they do


def widening(shares: np.ndarray, known: np.ndarray, alike: np.ndarray, unit: float) -> np.ndarray:
    """Return the covariance (P, P) of errors where the log does not show what candidates do.

    The deviation grows from 0 where 40 % of the decisions are not supported to 1.5 units of the returns at 50 %. Half
    of the variance is common to all such policies, the other half is alike where policies act `alike` (P, P).
    """
    sizes = np.where(known, 0, ((shares - MOST_UNSUPPORTED) / (_FULLY - MOST_UNSUPPORTED)).clip(0, 1))
    covariance = _COMMON + (1 - _COMMON) * alike
    covariance *= _WIDENED * unit * sizes
    covariance *= _WIDENED * unit * sizes[:, None]
    return covariance


def unchecked(members: np.ndarray, shares: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Return the covariance (P, P) of errors that known returns do not show, which members (P, M) do.

    Known returns show how a simulator errs for policies that act like them. The variance is a share (P,) of that of the
    members: 0 where a known policy acts the same, 1 where none acts alike. Errors are alike where policies act `alike`.
    """
    sizes = HONEST * members.std(1, ddof=1) * np.sqrt(shares)
    covariance = alike * sizes
    covariance *= sizes[:, None]
    return covariance
