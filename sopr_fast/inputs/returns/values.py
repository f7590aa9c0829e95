"""Returns by name, with their standard errors where they are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np


class Returns(dict[str, float]):
    """Mapping from name to return.

    Attributes:
        errors: Standard errors of the returns by name, of those policies where they are known.
    """

    def __init__(self, values: Mapping[str, float] | None = None, errors: Mapping[str, float] | None = None):
        super().__init__(values or {})
        self.errors = dict(errors or {})


def of_rollouts(returns: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the mean of the returns of rollouts and its standard error, 0 for a single one."""
    values = np.asarray(returns, np.float64)
    return float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def with_single_rollouts(errors: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return standard errors (M,) in which a single rollout has the standard deviation that the others have in common.

    A rollout alone does not tell its error, which is larger than those of means, not 0.

    Args:
        errors: (M,) standard errors; 0 for single rollouts.
        counts: (M,) number of rollouts.
    """
    weights = np.maximum(counts - 1, 0)
    if not weights.sum():
        return errors
    pooled = np.sqrt((weights * counts * errors**2).sum() / weights.sum())
    return np.where((counts == 1) & (errors == 0), pooled, errors)
