"""A critic of the logged behaviour, evaluated at the actions of every policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..runtime.fields import integer, option
from .critic_estimator import CriticEstimator
from .reward_estimator import Problem

_WATCHED_STATES = 1024


@dataclass(frozen=True)
class BehaviourQ(CriticEstimator):
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

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, request = problem.log, problem.request
        if not log.followed.any():
            raise ValueError(
                "log: no row is followed by another row of its episode, so no next action is known; pass the rows in "
                "the order in which they were logged"
            )
        actions = problem.actions(draws=self.draws, memory=0)
        watched, last = log.evaluated_rows(_WATCHED_STATES), log.count - 1
        critic, diagnostics = self._train(
            problem,
            actions,
            log.followed,
            lambda rows, update: log.actions[log.next[rows].clamp(max=last)][:, None],
            copies=1,
            description="SARSA critic",
            watch=lambda critic: critic.shared_mean_values(actions, watched),
            identity=lambda: (replace(self, draws=1), request.seed, *log.identity()),
        )
        with request.timings.stage("evaluation"):
            replicates = critic.shared_mean_values(actions, log.evaluated_rows())
        return replicates.mean(1), replicates, diagnostics
