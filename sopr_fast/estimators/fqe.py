"""Fitted Q evaluation of all policies at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..runtime.fields import number, option
from .critic_estimator import CriticEstimator
from .reward_estimator import Problem

_WATCHED_STATES = 1024


@dataclass(frozen=True)
class FQE(CriticEstimator):
    """Fitted Q evaluation (Le et al., 2019) with the target networks and normalisation of Kostrikov & Nachum (2020).

    The networks of all policies are trained together, on the same mini-batches and from the same initial weights. So
    the estimate of a policy does not depend on the other policies. The value is the discounted return from the initial
    states. After terminals the value is 0; after timeouts an episode continues from its next state.

    Attributes:
        updates: Number of gradient steps.
        batch_size: Transitions per step.
        hidden: Widths of the hidden layers; () for linear functions.
        learning_rate: Learning rate of Adam.
        target_rate: Weight of the critic in each update of its target network. None for 5 / (updates (1 - γ)), but at
            least 0.005 and at most 0.1. See `lag` below.
        ensemble: Networks per policy. Two or more learn from bootstrap samples of the episodes, and the standard
            deviation of their values is the standard error.
        draws: Actions sampled in every state of a stochastic policy.
        memory: Largest size in bytes of the table of actions. Beyond it, policies act anew on every mini-batch.

    Diagnostics:
        data: (P,) mean values of at most 65,536 logged states.
        uncovered: (P,) share of logged states in which the policy acts unlike the actions logged in similar states.
        dropped_rows: (P,) number of rows in which the next action of an array is unknown.
        lag: Share of the way to their fixed point that values have left, about exp(-updates target_rate (1 - γ)).
        curve: Updates, seconds, loss and values (P,) of initial states at each record.
        critic: `Critic` of ensemble * P networks.
        allowed: See `RewardEstimator`.

    Warns:
        UncertainEstimateWarning: A policy is uncovered in over 90 % of the states, the lag exceeds 0.1, or a value lies
            outside what rewards allow.
    """

    memory: float = option(1 << 30, number())

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, request = problem.log, problem.request
        actions = problem.actions(draws=self.draws, memory=self.memory)
        watched = log.initial[:: len(log.initial) // _WATCHED_STATES + 1]
        critic, diagnostics = self._train(
            problem,
            actions,
            np.ones(log.count, bool),
            lambda rows, update: actions(log.next[rows], update),
            has_next_action=actions.has_next_action,
            copies=len(problem.policies),
            description="FQE",
            watch=lambda critic: critic.mean_values(actions, watched),
            identity=lambda: (self, request.seed, *actions.identity()),
        )
        with request.timings.stage("evaluation"):
            replicates = critic.mean_values(actions, log.initial)
            data = critic.mean_values(actions, log.evaluated_rows()).mean(1)
        return replicates.mean(1), replicates, {"data": data, **diagnostics, "dropped_rows": actions.dropped_rows}
