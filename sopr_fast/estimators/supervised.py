"""What estimators that learn from known returns share."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from ..inputs.logs import StoredStates
from ..inputs.policies import Policy
from ..results.estimates import Estimates
from ..runtime import distributed
from ..sopr.subsets import Subsets
from .estimator import Estimator, LoggedData, Request

_ROWS = 256  # compared between processes


class Valuation(Protocol):
    """Function that values some policies by the known returns of others."""

    def __call__(self, tested: np.ndarray, known: np.ndarray, returns: np.ndarray, errors: np.ndarray) -> Estimates:
        """Return values of policies.

        Args:
            tested: (T,) int64 indices of the policies to value.
            known: (M,) int64 indices of the policies to learn from.
            returns: (M,) float64 returns of the latter.
            errors: (M,) float64 standard errors of these returns, 0 where unknown.
        """


class SupervisedEstimator(Estimator):
    """Base of estimators that learn from known returns and, but for that of their mean, need no rewards."""

    supervised: ClassVar[bool] = True

    @property
    def needs_rewards(self) -> bool:
        """Whether the mean needs rewards."""
        return self.mean is not None and self.mean.needs_rewards

    @abstractmethod
    def prepare(
        self,
        policies: list[Policy],
        log: LoggedData,
        *,
        seed: int = 0,
        checkpoint: str | os.PathLike | None = None,
        values: np.ndarray | None = None,
    ) -> Valuation:
        """Ask P policies to act, once for all folds, and return a function that learns and values.

        Args:
            policies: All policies to value or to learn from, which fit the log.
            log: Logged states or transitions.
            seed: Seed of everything random.
            checkpoint: File to resume training from, and to write, or None.
            values: (P,) float64 values by `mean`, if they are known already.
        """

    def _estimate(self, request: Request) -> Estimates:
        if distributed.current().count > 1:
            distributed.current().check_same(states=read_rows(request.log, spread(request.log, _ROWS))[0])
        value = self.prepare(request.policies, request.log, seed=request.seed, checkpoint=request.checkpoint)
        return value(np.arange(request.count), request.known, request.returns, request.errors)


def spread(log: LoggedData, most: int) -> np.ndarray:
    """Return the indices of at most `most` states of a log, evenly spread."""
    count = state_count(log)
    return np.linspace(0, count - 1, min(most, count)).astype(np.int64)


def state_count(log: LoggedData) -> int:
    """Return the number of states in a log."""
    return len(log.states) if isinstance(log, Subsets) else len(log)


def read_rows(log: LoggedData, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return states of a log (rows, dim_s) by their indices, and their rows in the user's data."""
    if isinstance(log, StoredStates):
        return torch.from_numpy(log.read(rows)), torch.from_numpy(rows)
    return torch.as_tensor(log.states[rows]), torch.as_tensor(log.source[rows])
