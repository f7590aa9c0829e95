"""A critic of the logged behaviour, evaluated at the actions of every policy."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..runtime.fields import integer, number, option, optional, widths
from .coverage import uncovered
from .critics import Critic, CriticLearner, decay, lag, target_rate
from .learning import Batches, learn
from .log import Log
from .policy_actions import PolicyActions
from .reward_estimator import Problem, RewardEstimator

_WATCHED_STATES = 1024


@dataclass(frozen=True)
class BehaviourQ(RewardEstimator):
    """Mean over logged states of a SARSA critic at the policy's actions; one critic serves all policies.

    The value is what follows when the policy's action is taken once and the logged behaviour goes on from there. It is
    not the return of the policy, but ranks policies well at little cost. It is the mean over at most 65,536 logged
    states, evenly spaced. A checkpoint of a run with other policies can be resumed.

    Attributes:
        updates: See `FQE`.
        batch_size: See `FQE`.
        hidden: See `FQE`.
        learning_rate: See `FQE`.
        target_rate: See `FQE`.
        ensemble: Number of critics. Two or more learn from bootstrap samples of the episodes, and the standard
            deviation of their values is the standard error.
        draws: See `FQE`.

    Diagnostics:
        uncovered: See `FQE`.
        lag: See `FQE`.
        curve: Updates, seconds, loss and values (P,) of 1,024 states at each record; NaN before a resumed run where the
            checkpoint is of other policies.
        critic: `Critic` of `ensemble` networks.
        allowed: See `RewardEstimator`.

    Warns:
        UncertainEstimateWarning: See `FQE`.
    """

    updates: int = option(10000, integer(1))
    batch_size: int = option(256, integer(1))
    hidden: tuple[int, ...] = option((256, 256), widths)
    learning_rate: float = option(3e-4, number(above=0))
    target_rate: float | None = option(None, optional(number(above=0, most=1)))
    ensemble: int = option(1, integer(1))
    draws: int = option(4, integer(1))

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, request, timings = problem.log, problem.request, problem.request.timings
        _check_followed(log)
        actions = problem.actions(draws=self.draws, memory=0)
        with timings.stage("coverage"):
            uncovered_shares = uncovered(actions, log)
        with timings.stage("training"):
            critic, diagnostics = self.train(log, request.seed, request.checkpoint, watched=actions)
        with timings.stage("evaluation"):
            replicates = critic.shared_mean_values(actions, log.evaluated_rows())
        diagnostics |= {"uncovered": uncovered_shares, "critic": critic}
        return replicates.mean(1), replicates if self.ensemble > 1 else None, diagnostics

    def train(
        self,
        log: Log,
        seed: int,
        checkpoint: str | os.PathLike | None = None,
        watched: PolicyActions | None = None,
    ) -> tuple[Critic, dict[str, Any]]:
        """Return the critic of a log, and its lag and curve; rows at timeouts are left out."""
        _check_followed(log)
        rate = target_rate(self.target_rate, self.updates, decay(log.transitions, self.discount))
        remaining = lag(log.transitions, self.updates, rate, self.discount)
        last = log.count - 1
        learner = CriticLearner(
            log,
            Batches(log.pools(log.followed, self.ensemble, seed), self.batch_size, seed, log.device),
            lambda rows, update: log.actions[log.next[rows].clamp(max=last)][:, None],
            copies=1,
            discount=self.discount,
            hidden=self.hidden,
            learning_rate=self.learning_rate,
            target_rate=rate,
            seed=seed,
        )
        critic = Critic(learner.target, learner.scale, log.units)
        rows = log.evaluated_rows(_WATCHED_STATES)
        curve = learn(
            learner,
            self.updates,
            description="SARSA critic",
            watch=None if watched is None else lambda: critic.shared_mean_values(watched, rows).mean(1).tolist(),
            checkpoint=checkpoint,
            identity=lambda: (replace(self, draws=1), seed, *log.identity()),
        )
        return critic, {"lag": remaining, "curve": curve}


def _check_followed(log: Log) -> None:
    if not log.followed.any():
        raise ValueError(
            "log: no row is followed by another row of its episode, so no next action is known; pass the rows in the "
            "order in which they were logged"
        )
