"""The interface of all estimators."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..inputs.accepted import LogLike, PoliciesLike, ReturnsLike
from ..inputs.policies import Policy, load_policies
from ..inputs.returns import check_ordered
from ..results.estimates import Estimates
from ..runtime import distributed
from ..runtime.checks import Checked, integer
from ..runtime.devices import without_autocast
from ..runtime.options import current, current_device


@dataclass(frozen=True)
class Request:
    """Arguments of one call of `Estimator.estimate`.

    Attributes:
        policies: Policies to evaluate, not yet checked against the log.
        log: Logged transitions or states, as the caller passed them.
        known: Policies with known returns; none if these are not used.
        returns: Their returns as the caller passed them.
        seed: Seed of everything random.
        checkpoint: File to resume training from, or None.
    """

    policies: list[Policy]
    log: Any
    known: list[Policy]
    returns: Any
    seed: int
    checkpoint: str | os.PathLike | None

    @property
    def names(self) -> list[str]:
        """(P,) names of the policies to evaluate."""
        return [policy.name for policy in self.policies]


class Estimator(Checked, ABC):
    """Base of all estimators: values policies from a log.

    Attributes:
        supervised: Whether `estimate` learns from known policies and needs their returns.
        uses_known: Whether `estimate` uses known policies and their returns where they are given.
        needs_rewards: Whether the log must hold rewards; otherwise logged states are enough.
    """

    supervised: ClassVar[bool] = False
    uses_known: ClassVar[bool] = False
    needs_rewards: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name of the method in tables and reports."""
        return type(self).__name__

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

        Each estimator documents the meaning of its values, its diagnostics and its warnings. All processes of
        `torch.distributed` must call this alike. They share the evaluation by policy; each trains all networks.

        Args:
            policies: P policies to evaluate, see `sopr_fast.load_policies`. Arrays of actions have one row for
                each row of the log.
            log: Logged transitions, see `sopr_fast.load_log`. Estimators that do not need rewards also accept only
                states, see `sopr_fast.fit`.
            known: M policies with known returns; see each estimator.
            returns: (M,) returns of the known policies, or a mapping from name to return.
            seed: Seed of everything random. The same seed gives the same result on the same number of threads.
            checkpoint: File to resume training from if it exists, and to write during training. A resumed run ends
                with the same result.

        Returns:
            Values of the policies, in input order.

        Raises:
            FloatingPointError: Training diverged.
            ImportError: Reading a file needs an extra that is not installed.
            MemoryError: A file exceeds the free memory.
            TypeError: A policy, a return or the log is of the wrong type.
            ValueError: An argument, a policy or a row of the log is invalid. The message names it.
            RuntimeError: A policy raised an error.
            OSError: A file cannot be read or written.

        Warns:
            UncertainEstimateWarning: The log holds too little evidence about a policy, or outliers among its actions.
        """
        learned: dict[str, Policy] = {}
        if known is None or returns is None:
            if self.supervised:
                raise ValueError(
                    f"{self.name} learns from known returns: pass known=policies and returns=their returns"
                )
        elif self.supervised or self.uses_known:
            learned = load_policies(known)
            check_ordered("returns", returns, learned)
        request = Request(
            list(load_policies(policies).values()),
            log,
            list(learned.values()),
            returns,
            integer(0)("seed", seed),
            checkpoint,
        )
        distributed.current().check_same(  # policies, log and returns are compared once they are read
            threads=torch.get_num_threads(),  # which change the last bits of networks
            method=self,
            options=[request.seed, current().batch_size],
        )
        # Training needs gradients and full precision, whatever the caller's mode.
        with torch.inference_mode(False), without_autocast(current_device()):
            return self._estimate(request)

    def prepare(self, policies: Any, log: Any, *, seed: int = 0) -> tuple[list[Policy], Any]:
        """Do the work that several calls of `estimate` share: read the log and ask policies to act.

        `estimate` gives the same values for what this method returns as for what was passed to it, with one seed.

        Args:
            policies: All policies that later calls evaluate or learn from.
            log: See `estimate`.
            seed: See `estimate`.

        Returns:
            The policies in input order, and the log.
        """
        return list(load_policies(policies).values()), log

    @abstractmethod
    def _estimate(self, request: Request) -> Estimates:
        """Return the estimates that the request asks for."""
