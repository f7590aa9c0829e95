"""The interface of all estimators."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..argument_types import LogLike, PoliciesLike, ReturnsLike
from ..inputs.logs import StoredStates, Transitions, load_states, load_transitions
from ..inputs.policies import Policies, Policy, load_policies
from ..inputs.returns import with_returns
from ..results.estimates import Estimates
from ..runtime import distributed
from ..runtime.checks import Checked, integer
from ..runtime.devices import without_autocast
from ..runtime.files import check_place
from ..runtime.options import current

_ROWS = 256  # compared between processes

LoggedData: TypeAlias = Transitions | StoredStates
Valuation: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Estimates]
"""Function of indices of policies to value and of known ones, both int64, of known returns, and of their errors."""


@dataclass(frozen=True)
class Request:
    """What one call of `Estimator.estimate` asks for, loaded."""

    policies: list[Policy]  # to value, then known ones
    log: LoggedData  # transitions; or states, if the estimator needs no rewards
    seed: int
    checkpoint: str | os.PathLike | None = None
    fold: tuple[np.ndarray, ...] = ()  # for supervised estimators, what a `Valuation` takes

    @property
    def transitions(self) -> Transitions:
        """The log, if the estimator needs rewards."""
        assert isinstance(self.log, Transitions)
        return self.log

    @property
    def names(self) -> list[str]:
        """(P,) names of the policies."""
        return [policy.name for policy in self.policies]


class Estimator(Checked, ABC):
    """Base of all estimators: values policies from a log.

    Attributes:
        supervised: Whether `estimate` learns from known policies and needs their returns.
        mean: Estimator whose values this one corrects by known returns; None for most.
    """

    supervised: ClassVar[bool] = False
    mean: Estimator | None = None

    @property
    def needs_rewards(self) -> bool:
        """Whether the log must hold rewards; otherwise logged states are enough."""
        return not self.supervised if self.mean is None else self.mean.needs_rewards

    @property
    def name(self) -> str:
        """Name of the method: its class, with that of its mean."""
        return type(self).__name__ + (f"({self.mean.name})" if self.mean is not None else "")

    def estimate(
        self,
        policies: PoliciesLike,
        log: LogLike,
        *,
        known: PoliciesLike | None = None,
        returns: ReturnsLike | None = None,
        seed: int = 0,
        checkpoint: str | os.PathLike | None = None,
    ) -> Estimates:
        """Estimate the values of all policies in one run.

        All processes of `torch.distributed` must call this alike. They share how policies act; each trains all.

        Args:
            policies: P policies to evaluate, see `sopr_fast.load_policies`. Arrays of actions have one row for each
                row of the user's data; estimators that ask for actions in other states refuse them.
            log: Logged transitions, see `sopr_fast.load_log`; or states, if the estimator needs no rewards.
            known: M policies with known returns, if the estimator is supervised.
            returns: (M,) returns of the known policies, or a mapping from name to return.
            seed: Seed of everything random. The same seed gives the same result on the same number of threads.
            checkpoint: File to write during training, and to resume from with the same result if it exists.

        Returns:
            Values of the policies, in input order.

        Raises:
            FloatingPointError: Training diverged.
            ImportError, MemoryError, OSError, RuntimeError, TypeError: See `load_policies`, `load_log`, `load_returns`.
            ValueError: An argument, a policy or a row of the log is invalid. The message names it.

        Warns:
            UncertainEstimateWarning: The log holds too little evidence about a policy, or its actions another range.
        """
        if distributed.current().rank == 0:  # which writes it
            check_place(checkpoint)  # before policies act
        seed, tested, learned = integer(0)("seed", seed), load_policies(policies), Policies([])
        values = errors = np.zeros(0)
        if self.supervised:
            if known is None or returns is None:
                raise ValueError(
                    f"{self.name} learns from known returns: pass known=policies and returns=their returns"
                )
            learned, table = with_returns(load_policies(known), returns)
            values, errors = table["return"].to_numpy(copy=True), np.nan_to_num(table["error"].to_numpy())
        has_rewards = self.needs_rewards or isinstance(log, Transitions)
        steps: LoggedData = load_transitions(log) if has_rewards else load_states(log)
        everyone = [policy for some in (tested, learned) for policy in some.for_log(data_rows(steps))]
        distributed.current().check_same(  # the whole log is compared once it is read
            threads=torch.get_num_threads(),  # which change the last bits of networks
            method=self,
            options=[seed, current().batch_size],
            names_of_policies=[policy.name for policy in everyone],
            returns=values.tolist(),
            states=read_rows(steps, spread(steps, _ROWS))[0],
        )
        # Training needs gradients and full precision, whatever the caller's mode.
        with torch.inference_mode(False), without_autocast(torch.device("cpu")):
            fold = *np.split(np.arange(len(everyone)), [len(tested)]), values, errors
            return self._estimate(Request(everyone, steps, seed, checkpoint, fold))

    @abstractmethod
    def _estimate(self, request: Request) -> Estimates:
        """Return the estimates that the request asks for."""


class SupervisedEstimator(Estimator):
    """Base of estimators that learn from known returns and, but for that of their mean, need no rewards."""

    supervised: ClassVar[bool] = True

    @abstractmethod
    def prepare(self, request: Request, values: np.ndarray | None = None) -> Valuation:
        """Ask all policies to act, once for all folds, and return a function that learns and values.

        Args:
            request: Its policies, log, seed and checkpoint.
            values: (P,) float64 values of all policies by `mean`, if they are known already.
        """

    def _estimate(self, request: Request) -> Estimates:
        return self.prepare(request)(*request.fold)


def data_rows(log: LoggedData) -> int:
    """Return the number of rows of the user's data."""
    return log.source_count if isinstance(log, Transitions) else len(log)


def spread(log: LoggedData, most: int) -> np.ndarray:
    """Return the indices of at most `most` states of a log, evenly spread."""
    return np.linspace(0, len(log) - 1, min(most, len(log))).astype(np.int64)


def read_rows(log: LoggedData, rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return states of a log (rows, dim_s) by their indices, and their rows in the user's data."""
    states, source = (log.read(rows), rows) if isinstance(log, StoredStates) else (log.states[rows], log.source[rows])
    return torch.from_numpy(states), torch.from_numpy(source)
