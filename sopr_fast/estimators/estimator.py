"""What all estimators share: options that are checked, a problem that is read, estimates that are put together."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..policies import Layout, Policy
from ..runtime.devices import check_device, without_autocast
from ..runtime.files import check_checkpoint
from ..runtime.timing import Timings
from .estimates import Estimates
from .learning import CHECKPOINT
from .log import Log, PolicyActions, read
from .options import Options, check_option


@dataclass(frozen=True)
class Problem:
    """P policies to evaluate on a log, both checked.

    Attributes:
        checkpoint, progress: of the training, see `Estimator.estimate`.
        timings: of the evaluation so far.
    """

    policies: list[Policy]
    layout: Layout
    log: Log
    discount: float
    seed: int
    checkpoint: str | os.PathLike | None
    progress: bool
    timings: Timings

    @property
    def names(self) -> list[str]:
        return [policy.name for policy in self.policies]

    def actions(self, *, draws: int, memory: int) -> PolicyActions:
        with self.timings.stage("policies"):
            return PolicyActions(
                self.policies,
                self.layout,
                self.log,
                draws=draws,
                seed=self.seed,
                memory=memory,
                progress=self.progress,
            )


class Estimator(Options, ABC):
    """Estimates what policies would return from logged transitions, all of them in one batched run."""

    def estimate(
        self,
        policies: Any,
        transitions: Any,
        *,
        discount: float,
        seed: int = 0,
        action_count: int | None = None,
        checkpoint: str | os.PathLike | None = None,
        device: torch.device | str = "cpu",
        progress: bool = True,
    ) -> Estimates:
        """Values of all policies; what they mean, their diagnostics and warnings: see each estimator.

        Args:
            policies: P policies, see `sopr_fast.policies.as_policies`; arrays of actions have a row for
                each of the data's.
            transitions: see `sopr_fast.data.load`.
            discount: γ, at least 0 and less than 1.
            seed: of everything random; the same seed gives the same result on the same number of threads.
            action_count: number of discrete actions where policies return indices.
            checkpoint: file to resume training from if it exists; written as it goes. The result is the same.
            device: of networks and data; policies act where they are.
            progress: show bars.

        Raises:
            FloatingPointError: training diverged.
            ImportError, MemoryError: a file needs an extra, or more memory than is free.
            TypeError, ValueError, RuntimeError, OSError: names the policy, row, option or file at fault, before long
                work.

        Warns:
            UncertainEstimateWarning: the log says too little of a policy.
            UserWarning: see `sopr_fast.data.load`.
        """
        discount, seed = check_option("discount", discount), check_option("seed", seed)
        device = check_device(device)
        check_checkpoint(checkpoint, CHECKPOINT)
        timings = Timings()
        with torch.inference_mode(False), without_autocast(device):  # with gradients, whatever the mode outside
            with timings.stage("policies"):
                found = read(policies, transitions, action_count=action_count, device=device)
            problem = Problem(*found, discount, seed, checkpoint, progress, timings)
            values, replicates, diagnostics = self._evaluate(problem)
        return Estimates(
            problem.names,
            values,
            replicates,
            method=type(self).__name__,
            diagnostics=diagnostics,
            timings=dict(timings),
        )

    @abstractmethod
    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        """(P,) values, (P, R) replicates or None, diagnostics."""
