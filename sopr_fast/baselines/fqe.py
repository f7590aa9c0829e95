"""Fitted Q evaluation of all policies at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..timing import Timings
from .coverage import uncovered
from .critics import Critic, CriticLearner, lag, target_rate
from .estimates import Estimates
from .learning import Batches, learn
from .log import PolicyActions, read
from .options import Options, check_option


@dataclass(frozen=True)
class FQE(Options):
    """Fitted Q evaluation (Le 2019) with a target network and normalised states and values (Kostrikov & Nachum 2020).

    The networks of all policies are trained together on the same mini-batches from the same initial weights, so a
    policy's estimate does not depend on which others are evaluated with it.

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

    Raises:
        ValueError: names the option at fault.
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
        """Discounted return of every policy from the initial states.

        Episodes end with value 0 at terminals; at timeouts the next state counts as any other.

        Args:
            policies: P policies, see `sopr_fast.policies.as_policies`; arrays of actions have a row for
                each of the data's.
            transitions: see `sopr_fast.data.load`.
            discount: γ, at least 0 and less than 1.
            seed: of everything random; the same seed gives the same result on the same number of threads.
            action_count: number of discrete actions where policies return indices.
            checkpoint: file to resume from if it exists; written as training goes. The result is the same.
            device: of networks and data; policies act where they are.
            progress: show bars.

        Returns:
            Diagnostics: "initial" and "data" (P,) the two means, "uncovered" (P,) share of logged states in which the
            policy acts unlike what is logged in similar states, "curve" (updates, seconds, loss and values (P,) on
            initial states at each record), "dropped_rows" (P,) of the log, after which it is not known what an array
            does, "lag", see `target_rate`, "critic", a `Critic` of ensemble * P networks.

        Warns:
            UncertainEstimateWarning: over 0.9 of a policy is uncovered, or the lag is over 0.1.

        Raises:
            FloatingPointError: training diverged.
            ImportError: the extra that reads such files is not installed.
            TypeError, ValueError, OSError: names the policy, row, option or file at fault, before long work.
        """
        seed = check_option("seed", seed)
        rate = target_rate(self.target_rate, self.updates, check_option("discount", discount))
        left = lag(self.updates, rate, discount)
        timings = Timings()
        with timings.stage("policies"):
            found, layout, log = read(
                policies,
                transitions,
                discount=discount,
                action_count=action_count,
                device=device,
                checkpoint=checkpoint,
            )
            actions = PolicyActions(
                found, layout, log, draws=self.draws, seed=seed, memory=self.memory, progress=progress
            )
        with timings.stage("coverage"):
            outside = uncovered(actions, log, progress=progress)
        with timings.stage("training"):
            pools = log.pools(np.ones(log.count, bool), self.ensemble, seed)
            learner = CriticLearner(
                log,
                Batches(pools, self.batch_size, seed, log.device),
                lambda rows, update: actions(log.next[rows], update),
                actions.known,
                copies=len(found),
                discount=discount,
                hidden=self.hidden,
                learning_rate=self.learning_rate,
                target_rate=rate,
                seed=seed,
            )
            critic = Critic(learner.target, learner.scale, log)
            initial = log.initial[:: len(log.initial) // 1024 + 1]
            curve = learn(
                learner,
                self.updates,
                description="FQE",
                watch=lambda: critic.mean_values(actions, initial).mean(1).tolist(),
                checkpoint=checkpoint,
                identity=lambda: (self, discount, seed, *actions.identity()),
                progress=progress,
            )
        with timings.stage("evaluation"):
            means = {
                "initial": critic.mean_values(actions, log.initial, progress=progress),
                "data": critic.mean_values(actions, log.evaluated_rows(), progress=progress),
            }
        replicates = means[self.start]
        return Estimates(
            [policy.name for policy in found],
            replicates.mean(1),
            replicates if self.ensemble > 1 else None,
            method="FQE",
            diagnostics={
                **{name: value.mean(1) for name, value in means.items()},
                "uncovered": outside,
                "curve": curve,
                "lag": left,
                "critic": critic,
                "dropped_rows": actions.dropped_rows,
            },
            timings=dict(timings),
        )
