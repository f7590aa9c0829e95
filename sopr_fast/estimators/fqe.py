"""Fitted Q evaluation of all policies at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..runtime.fields import integer, number, option, optional, widths
from .coverage import uncovered
from .critics import Critic, CriticLearner, decay, lag, target_rate
from .learning import Batches, learn
from .reward_estimator import Problem, RewardEstimator

_WATCHED_STATES = 1024


@dataclass(frozen=True)
class FQE(RewardEstimator):
    """Fitted Q evaluation (Le et al., 2019) with the target networks and normalisation of Kostrikov & Nachum (2020).

    The networks of all policies are trained together on the same mini-batches from the same initial weights, so the
    estimate of a policy does not depend on the other policies. The value is the discounted return from the initial
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

    trains_each_policy: ClassVar[bool] = True

    updates: int = option(20000, integer(1))
    batch_size: int = option(256, integer(1))
    hidden: tuple[int, ...] = option((256, 256), widths)
    learning_rate: float = option(3e-4, number(above=0))
    target_rate: float | None = option(None, optional(number(above=0, most=1)))
    ensemble: int = option(1, integer(1))
    draws: int = option(4, integer(1))
    memory: float = option(1 << 30, number())

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, request, timings = problem.log, problem.request, problem.request.timings
        rate = target_rate(self.target_rate, self.updates, decay(log.transitions, self.discount))
        remaining = lag(log.transitions, self.updates, rate, self.discount)
        actions = problem.actions(draws=self.draws, memory=self.memory)
        with timings.stage("coverage"):
            uncovered_shares = uncovered(actions, log)
        with timings.stage("training"):
            pools = log.pools(np.ones(log.count, bool), self.ensemble, request.seed)
            learner = CriticLearner(
                log,
                Batches(pools, self.batch_size, request.seed, log.device),
                lambda rows, update: actions(log.next[rows], update),
                actions.has_next_action,
                copies=len(problem.policies),
                discount=self.discount,
                hidden=self.hidden,
                learning_rate=self.learning_rate,
                target_rate=rate,
                seed=request.seed,
            )
            critic = Critic(learner.target, learner.scale, log.units)
            initial = log.initial[:: len(log.initial) // _WATCHED_STATES + 1]
            curve = learn(
                learner,
                self.updates,
                description="FQE",
                watch=lambda: critic.mean_values(actions, initial).mean(1).tolist(),
                checkpoint=request.checkpoint,
                identity=lambda: (self, request.seed, *actions.identity()),
            )
        with timings.stage("evaluation"):
            replicates = critic.mean_values(actions, log.initial)
            data = critic.mean_values(actions, log.evaluated_rows()).mean(1)
        diagnostics = {
            "data": data,
            "uncovered": uncovered_shares,
            "curve": curve,
            "lag": remaining,
            "critic": critic,
            "dropped_rows": actions.dropped_rows,
        }
        return replicates.mean(1), replicates if self.ensemble > 1 else None, diagnostics
