"""A critic of the logged behaviour, asked about every policy's actions."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..data import load
from ..runtime.devices import check_device, without_autocast
from .coverage import uncovered
from .critics import Critic, CriticLearner, target_rate
from .estimator import Estimator, Problem
from .learning import Batches, learn
from .log import Log, PolicyActions
from .options import check_option


@dataclass(frozen=True)
class BehaviourQ(Estimator):
    """Mean over logged states of a SARSA critic at the policy's action: one critic for all policies.

    It is the value of taking the policy's action once and behaving as logged from then on, so not a return of the
    policy; but a cheap, strong ranking. Of the logged states 65,536 at most are asked, evenly spaced. A checkpoint of
    `fit`, or of other policies, serves as well.

    Attributes: see `FQE`; `ensemble` critics learn from bootstrap draws of episodes.

    Diagnostics:
        uncovered: (P,), see `FQE`.
        curve: updates, seconds, loss and values (P,) on 1,024 rows; nan where the checkpoint is not of these policies.
        critic: a `Critic` of `ensemble` networks.

    Warns:
        UncertainEstimateWarning: over 0.9 of a policy is uncovered.
    """

    updates: int = 10000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    target_rate: float | None = None
    ensemble: int = 1
    draws: int = 4

    def fit(
        self,
        transitions: Any,
        *,
        discount: float,
        seed: int = 0,
        action_count: int | None = None,
        checkpoint: str | os.PathLike | None = None,
        device: torch.device | str = "cpu",
        progress: bool = True,
    ) -> Critic:
        """The critic alone: `critic(states, actions)` → (ensemble, N) values; no policies needed.

        At timeouts the next action is not known, and those rows are left out.

        Raises:
            TypeError, ValueError, OSError: names the row, option or file at fault, or the checkpoint is another run's.
            FloatingPointError: training diverged.
        """
        discount, seed = check_option("discount", discount), check_option("seed", seed)
        log = Log(load(transitions), action_count=action_count, device=check_device(device))
        with torch.inference_mode(False), without_autocast(log.device):
            return self._fit(log, discount, seed, checkpoint, progress)[0]

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log = problem.log
        _check_followed(log)
        actions = problem.actions(draws=self.draws, memory=0)
        with problem.timings.stage("coverage"):
            outside = uncovered(actions, log, progress=problem.progress)
        with problem.timings.stage("training"):
            critic, curve = self._fit(
                log, problem.discount, problem.seed, problem.checkpoint, problem.progress, watched=actions
            )
        with problem.timings.stage("evaluation"):
            replicates = critic.shared_mean_values(actions, log.evaluated_rows(), progress=problem.progress)
        diagnostics = {"uncovered": outside, "curve": curve, "critic": critic}
        return replicates.mean(1), replicates if self.ensemble > 1 else None, diagnostics

    def _fit(
        self,
        log: Log,
        discount: float,
        seed: int,
        checkpoint: str | os.PathLike | None,
        progress: bool,
        watched: PolicyActions | None = None,
    ) -> tuple[Critic, dict[str, list]]:
        _check_followed(log)
        last = log.count - 1
        learner = CriticLearner(
            log,
            Batches(log.pools(log.followed, self.ensemble, seed), self.batch_size, seed, log.device),
            lambda rows, update: log.actions[log.next[rows].clamp(max=last)][:, None],
            copies=1,
            discount=discount,
            hidden=self.hidden,
            learning_rate=self.learning_rate,
            target_rate=target_rate(self.target_rate, self.updates, discount),
            seed=seed,
        )
        critic = Critic(learner.target, learner.scale, log.units)
        few = log.evaluated_rows(1024)
        curve = learn(
            learner,
            self.updates,
            description="SARSA critic",
            watch=watched and (lambda: critic.shared_mean_values(watched, few).mean(1).tolist()),
            checkpoint=checkpoint,
            identity=lambda: (replace(self, draws=1), discount, seed, *log.identity()),
            progress=progress,
        )
        return critic, curve


def _check_followed(log: Log) -> None:
    if not log.followed.any():
        raise ValueError("transitions: no row is followed by the next one, so no next action is known")
