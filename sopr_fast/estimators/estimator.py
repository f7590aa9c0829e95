"""The interface of all estimators."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from ..inputs.logs import load_transitions
from ..inputs.policies import Policy, as_policies
from ..inputs.policies import load as load_policies
from ..inputs.returns import check_ordered
from ..ranking.estimates import Estimates
from ..runtime import distributed
from ..runtime.context import options
from ..runtime.devices import check_device, without_autocast
from ..runtime.options import Options, integer, number
from ..runtime.timing import Timings

BATCH_SIZE = 16384


@dataclass(frozen=True)
class Request:
    """Arguments of one call of `Estimator.estimate`.

    Log and returns are as the caller passed them; the other arguments are checked.

    Attributes:
        policies: Policies to evaluate, not yet checked against the log.
        log: Logged transitions or states.
        known: Policies with known returns, or None.
        returns: Their returns, or None.
        discount: Discount factor γ, or None.
        seed: Seed of everything random.
        action_count: Number of discrete actions, or None.
        checkpoint: File to resume training from, or None.
        device: Device of networks and data.
        batch_size: Largest number of states that a policy sees at once.
        progress: Whether to show progress bars.
        timings: Seconds by stage so far.
    """

    policies: list[Policy]
    log: Any
    known: list[Policy] | None
    returns: Any
    discount: float | None
    seed: int
    action_count: int | None
    checkpoint: str | os.PathLike | None
    device: torch.device
    batch_size: int
    progress: bool
    timings: Timings = field(default_factory=Timings)


class Estimator(Options, ABC):
    """Base of all estimators: values policies from a log.

    Attributes:
        supervised: Whether `estimate` learns from known policies and needs their returns.
        uses_known: Whether `estimate` uses known policies and their returns where they are given.
        discounted: Whether values are discounted returns, which need a discount.
        needs_rewards: Whether the log must hold rewards; otherwise logged states are enough.
        leaves_one_out: Whether a policy that is itself known is valued without its own return, at no extra cost.
        reuses_subsets: Whether the method clusters states and accepts `Subsets` in place of a log.
        trains_each_policy: Whether each policy has networks of its own and the policies share little work, so that
            `evaluate` and `select` let processes train blocks of policies.
    """

    supervised: ClassVar[bool] = False
    leaves_one_out: ClassVar[bool] = False
    uses_known: ClassVar[bool] = False
    discounted: ClassVar[bool] = True
    needs_rewards: ClassVar[bool] = True
    reuses_subsets: ClassVar[bool] = False
    trains_each_policy: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Name of the method in tables and reports."""
        return type(self).__name__

    def estimate(
        self,
        policies: Any,
        log: Any,
        *,
        known: Any = None,
        returns: Any = None,
        discount: float | None = None,
        seed: int = 0,
        action_count: int | None = None,
        checkpoint: str | os.PathLike | None = None,
        device: torch.device | str = "cpu",
        batch_size: int = BATCH_SIZE,
        progress: bool = True,
        trust: bool = False,
        stochastic: bool = False,
        skip: bool = False,
    ) -> Estimates:
        """Estimate the values of all policies in one run.

        Each estimator documents the meaning of its values, its diagnostics and its warnings. All processes of
        `torch.distributed` must call this alike. They share the evaluation by policy; each trains all networks.

        Args:
            policies: P policies to evaluate, see `sopr_fast.load_policies`. Arrays of actions have one row for
                each row of the log.
            log: Logged transitions, see `sopr_fast.load_log`. Estimators that do not need rewards also accept states
                alone, see `sopr_fast.fit`.
            known: M policies with known returns; see each estimator.
            returns: (M,) returns of the known policies, or a mapping from name to return.
            discount: Discount factor γ, from 0 to 1; needed by estimators that need rewards. 1, the undiscounted
                return, needs episodes that end in terminal states.
            seed: Seed of everything random. The same seed gives the same result on the same number of threads.
            action_count: Number of discrete actions, where policies return indices.
            checkpoint: File to resume training from if it exists, and to write during training. A resumed run ends
                with the same result.
            device: Device of networks and data. Policies act where they are.
            batch_size: Largest number of states that a policy sees at once.
            progress: Whether to show progress bars.
            trust: Run code in files of policies where reading them needs it, see `sopr_fast.load_policies`.
            stochastic: Act by the distributions in files of policies instead of their means.
            skip: Skip files of policies that cannot be read, with a warning for each, instead of raising.

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
        if discount is not None:
            discount = number(most=1)("discount", discount)
        elif self.needs_rewards and self.discounted:
            raise ValueError(f"{self.name} estimates discounted returns: pass discount, such as discount=0.99")
        if self.supervised and (known is None or returns is None):
            raise ValueError(f"{self.name} learns from known returns: pass known=policies and returns=their returns")
        use_known = self.supervised or (self.uses_known and known is not None and returns is not None)
        if use_known:
            known = load_policies(known, action_count=action_count, trust=trust, stochastic=stochastic, skip=skip)
            check_ordered("returns", returns, known)
        seed, batch_size = integer(0)("seed", seed), integer(1)("batch_size", batch_size)
        device = check_device(device)
        reading: dict[str, Any] = {"action_count": action_count, "trust": trust, "stochastic": stochastic, "skip": skip}
        request = Request(
            as_policies(policies, **reading),
            log,
            as_policies(known, **reading) if use_known else None,
            returns,
            discount,
            seed,
            action_count,
            checkpoint,
            device,
            batch_size,
            progress,
        )
        self._check_processes(request)
        # Training needs gradients and full precision, whatever the caller's mode.
        choices = options(progress=progress, batch_size=batch_size, device=device)
        with torch.inference_mode(False), without_autocast(request.device), choices:
            return self._estimate(request)

    def prepare(
        self,
        policies: Any,
        log: Any,
        *,
        seed: int = 0,
        action_count: int | None = None,
        device: torch.device | str = "cpu",
        batch_size: int = BATCH_SIZE,
        progress: bool = True,
    ) -> tuple[list[Policy], Any]:
        """Do the work that several calls of `estimate` share, such as reading the log and asking policies to act.

        `estimate` gives the same values for what this method returns as for what was passed to it, if seed and action
        count are equal.

        Args:
            policies: All policies that later calls evaluate or learn from.
            log: See `estimate`.
            seed: See `estimate`.
            action_count: See `estimate`.
            device: See `estimate`.
            batch_size: See `estimate`.
            progress: See `estimate`.

        Returns:
            The policies in input order, and the log.
        """
        log = load_transitions(log)
        return as_policies(policies, states_count=log.source_count, action_count=action_count), log

    def _check_processes(self, request: Request) -> None:
        """Check that all processes of the group were asked the same, and that networks which each trains will be equal.

        Policies, log and returns are compared once they are read.

        Raises:
            ValueError: A process has something else than process 0.
        """
        distributed.current().check_same(
            threads=torch.get_num_threads(),  # which change the last bits of networks
            method=self,
            options=[request.discount, request.seed, request.action_count, request.batch_size],
        )

    @abstractmethod
    def _estimate(self, request: Request) -> Estimates:
        """Return the estimates that the request asks for."""
