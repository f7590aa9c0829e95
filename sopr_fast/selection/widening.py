"""How much wider intervals are where neither the log nor known returns show what policies do."""

from __future__ import annotations

import numpy as np

from ..estimators.log_support import MOST_UNSUPPORTED
from ..estimators.member_errors import HONEST

_WIDENED = 1.5  # deviation where the log does not show what a policy does, in units of the returns
_UNLIVED = 2.5  # that in units of what policies would earn after the ends that a simulator guesses
_FULLY = 0.5  # share of decisions from which it is as large as that
_COMMON = 0.5  # share of this variance that is common to such policies, whatever they do


def widening(
    shares: np.ndarray,  # (P,) shares of decisions that the log does not support
    unlike: np.ndarray,  # (P,) from 0 where a known policy acts the same to 1 where none acts alike
    alike: np.ndarray,  # (P, P) how alike policies act, from 0 to 1
    unit: float,  # of the returns
    unlived: np.ndarray | float = 0.0,  # (P,) what policies would earn from the simulated ends of episodes on
) -> np.ndarray:
    """Return the covariance (P, P) of errors where neither the log nor known returns show what policies do.

    The deviation grows from 0 where 40 % of the decisions are not supported to its whole at 50 %: 1.5 units of the
    returns, or 2.5 times what is not lived if that is more. Half of the variance is common to all such policies, the
    other half is alike where policies act alike.
    """
    reached = ((shares - MOST_UNSUPPORTED) / (_FULLY - MOST_UNSUPPORTED)).clip(0, 1)
    sizes = reached * np.sqrt(unlike) * np.maximum(_WIDENED * unit, _UNLIVED * unlived)
    return _scaled(_COMMON + (1 - _COMMON) * alike, sizes)


def errors_far_from_known(members: np.ndarray, unlike: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """Return the covariance (P, P) of errors that known returns do not show, which members (P, M) do.

    Known returns show how a simulator errs for policies that act like them. The variance is a share of that of the
    members; for `unlike` and `alike` see `widening`.
    """
    sizes = HONEST * members.std(1, ddof=1) * np.sqrt(unlike)
    return _scaled(alike.copy(), sizes)


def _scaled(correlations: np.ndarray, deviations: np.ndarray) -> np.ndarray:
    """Return the covariance (P, P), in place of its correlations, of which there may be millions."""
    correlations *= deviations
    correlations *= deviations[:, None]
    return correlations
