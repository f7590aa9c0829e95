"""What estimators that learn from known returns share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..inputs.logs import StoredStates
from ..results.estimates import Estimates
from ..runtime import distributed
from ..sopr.subsets import Subsets
from .estimator import Estimator, LoggedData, Request

_ROWS = 256  # compared between processes

Valuation: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Estimates]
"""Function of indices of policies to value and of known ones, both int64, of known returns, and of their errors."""


class SupervisedEstimator(Estimator):
    """Base of estimators that learn from known returns and, but for that of their mean, need no rewards."""

    supervised: ClassVar[bool] = True

    @property
    def needs_rewards(self) -> bool:
        """Whether the mean needs rewards."""
        return self.mean is not None and self.mean.needs_rewards

    @abstractmethod
    def prepare(self, request: Request, values: np.ndarray | None = None) -> Valuation:
        """Ask all policies to act, once for all folds, and return a function that learns and values.

        Args:
            request: Its policies, log, seed and checkpoint.
            values: (P,) float64 values of all policies by `mean`, if they are known already.
        """

    def _estimate(self, request: Request) -> Estimates:
        if distributed.current().count > 1:
            distributed.current().check_same(states=read_rows(request.log, spread(request.log, _ROWS))[0])
        return self.prepare(request)(*request.fold)


def spread(log: LoggedData, most: int) -> np.ndarray:
    """Return the indices of at most `most` states of a log, evenly spread."""
    count = state_count(log)
    return np.linspace(0, count - 1, min(most, count)).astype(np.int64)


def state_count(log: LoggedData) -> int:
    """Return the number of states in a log."""
    return len(log.states) if isinstance(log, Subsets) else len(log)


def read_rows(log: LoggedData, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return states of a log (rows, dim_s) by their indices, and their rows in the user's data."""
    if isinstance(log, Subsets):
        return log.states[rows], log.source[rows]
    states, source = (log.read(rows), rows) if isinstance(log, StoredStates) else (log.states[rows], log.source[rows])
    return torch.from_numpy(states), torch.from_numpy(source)
