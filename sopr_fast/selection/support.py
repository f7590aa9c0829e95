"""What tells, without any known return, how far a simulator can be trusted: in words, and as wider intervals."""

from __future__ import annotations

import numpy as np

from ..estimators.log_support import MOST_UNSUPPORTED
from ..runtime.text import list_names

_AGREE, _AGREE_IN_PART = 0.8, 0.5  # mean rank correlation of the orders by two members
_WIDENED = 1.5  # deviation where the log does not show what a policy does, in units of the returns
_FULLY = 0.5  # share of decisions from which it is as large as that
_COMMON = 0.5  # share of this variance that is common to such policies, whatever they do


def agreement_in_words(agreement: float) -> list[str]:
    """Return whether the members of a simulator order the policies alike; nothing if that is unknown."""
    if np.isnan(agreement):
        return []
    if agreement >= _AGREE:
        return [f"The simulators agree on the order: {agreement:.2f}"]
    if agreement >= _AGREE_IN_PART:
        return [f"The simulators agree on the order in part: {agreement:.2f}; measure the first few"]
    return [f"The simulators do not agree on the order: {agreement:.2f}; this log does not tell; measure"]


def is_unsupported(shares: np.ndarray | None, known: np.ndarray) -> np.ndarray:
    """Return whether the log does not show what each candidate (P,) does."""
    return np.zeros(len(known), bool) if shares is None else ~known & (shares > MOST_UNSUPPORTED)


def unsupported_in_words(names: list[str], shares: np.ndarray | None, known: np.ndarray) -> list[str]:
    """Return a note on the candidates that the log does not support; none without such."""
    places = np.flatnonzero(is_unsupported(shares, known))
    if shares is None or not len(places):
        return []
    least, most = (f"{share:.0%}".replace("%", " %") for share in (shares[places].min(), shares[places].max()))
    share = most if least == most else f"{least} to {most}"
    listed = list_names([names[i] for i in places], 5)
    return [f"The log does not show what these do, since {share} of their decisions are unlike logged ones: {listed}"]


def widening(shares: np.ndarray | None, known: np.ndarray, alike: np.ndarray, unit: float) -> np.ndarray:
    """Return the covariance (P, P) of errors where the log does not show what candidates do.

    The deviation grows from 0 where 40 % of the decisions are not supported to 1.5 units of the returns at 50 %. Half
    of the variance is common to all such policies, the other half is alike where policies act `alike` (P, P).
    """
    if shares is None:
        return np.zeros_like(alike)
    sizes = np.where(known, 0, ((shares - MOST_UNSUPPORTED) / (_FULLY - MOST_UNSUPPORTED)).clip(0, 1))
    return (_WIDENED * unit) ** 2 * np.outer(sizes, sizes) * (_COMMON + (1 - _COMMON) * alike)
