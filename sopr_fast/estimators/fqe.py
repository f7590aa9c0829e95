"""Fitted Q evaluation of all policies at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .coverage import uncovered
from .critics import Critic, CriticLearner, lag, target_rate
from .estimator import Estimator, Problem
from .learning import Batches, learn


@dataclass(frozen=True)
class FQE(Estimator):
    """Fitted Q evaluation (Le 2019) with a target network and normalised states and values (Kostrikov & Nachum 2020).

    The networks of all policies are trained together on the same mini-batches from the same initial weights, so a
    policy's estimate does not depend on which others are evaluated with it. The value is the discounted return from the
    initial states; episodes end with value 0 at terminals, and at timeouts the next state counts as any other.

    Attributes:
        updates: gradient steps.
        batch_size: transitions a step.
        hidden: widths of hidden layers; () is a linear function.
        learning_rate: Adam's.
        target_rate: share of the way that target networks go toward the critics at each step; by default
            5 / (updates (1 - γ)), but 0.005 to 0.1: values lag behind by about exp(-updates target_rate (1 - γ)) of the
            way to where they lead.
        ensemble: members; more than one learn from bootstrap draws of episodes, and their spread is the standard error.
        draws: actions drawn in every state of a stochastic policy.
        start: "initial" for the mean value of initial states, "data" of logged states, 65,536 of them at most.
        memory: bytes for what policies do in all states; if it takes more, they are asked again for every batch.

    Diagnostics:
        initial, data: (P,) the two means of `start`.
        uncovered: (P,) share of logged states in which the policy acts unlike what is logged in similar states.
        dropped_rows: (P,) of the log, after which it is not known what an array does.
        lag: see `target_rate`.
        curve: updates, seconds, loss and values (P,) on initial states at each record.
        critic: a `Critic` of ensemble * P networks.

    Raises:
        ValueError: names the option at fault.

    Warns:
        UncertainEstimateWarning: over 0.9 of a policy is uncovered, or the lag is over 0.1.
    """

    updates: int = 20000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    target_rate: float | None = None
    ensemble: int = 1
    draws: int = 4
    start: str = "initial"
    memory: int = 1 << 30

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, discount, seed = problem.log, problem.discount, problem.seed
        rate = target_rate(self.target_rate, self.updates, discount)
        left = lag(self.updates, rate, discount)
        actions = problem.actions(draws=self.draws, memory=self.memory)
        with problem.timings.stage("coverage"):
            outside = uncovered(actions, log, progress=problem.progress)
        with problem.timings.stage("training"):
            pools = log.pools(np.ones(log.count, bool), self.ensemble, seed)
            learner = CriticLearner(
                log,
                Batches(pools, self.batch_size, seed, log.device),
                lambda rows, update: actions(log.next[rows], update),
                actions.known,
                copies=len(problem.policies),
                discount=discount,
                hidden=self.hidden,
                learning_rate=self.learning_rate,
                target_rate=rate,
                seed=seed,
            )
            critic = Critic(learner.target, learner.scale, log.units)
            initial = log.initial[:: len(log.initial) // 1024 + 1]
            curve = learn(
                learner,
                self.updates,
                description="FQE",
                watch=lambda: critic.mean_values(actions, initial).mean(1).tolist(),
                checkpoint=problem.checkpoint,
                identity=lambda: (replace(self, start="data"), discount, seed, *actions.identity()),
                progress=problem.progress,
            )
        with problem.timings.stage("evaluation"):
            means = {
                "initial": critic.mean_values(actions, log.initial, progress=problem.progress),
                "data": critic.mean_values(actions, log.evaluated_rows(), progress=problem.progress),
            }
        diagnostics = {
            **{name: value.mean(1) for name, value in means.items()},
            "uncovered": outside,
            "curve": curve,
            "lag": left,
            "critic": critic,
            "dropped_rows": actions.dropped_rows,
        }
        replicates = means[self.start]
        return replicates.mean(1), replicates if self.ensemble > 1 else None, diagnostics
