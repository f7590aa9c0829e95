"""Critics fitted by temporal differences: one per policy, or one of the logged behaviour."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..inputs.logs import Transitions
from ..runtime.checks import integer, number, option, optional, widths
from ..runtime.distributed import block_bounds
from ..runtime.progress import each
from ..runtime.text import percent
from .learning import Batches, Learner, learn
from .log import Log
from .networks import ActionValue
from .policy_actions import PolicyActions
from .reward_estimator import Evaluated, RewardEstimator, decay, value_range

_CHUNK = 1 << 16  # (state, action) rows evaluated at once
_LARGEST_LAG = 0.1


@dataclass(frozen=True)
class FQE(RewardEstimator):
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

    Diagnostics:
        lag: Share of the way to their fixed point that values have left, about exp(-updates target_rate (1 - γ)).
        curve: Updates and loss at each record.

    Warns:
        UncertainEstimateWarning: The lag exceeds 0.1; see also `RewardEstimator`.
    """

    shared: ClassVar[bool] = False  # whether one critic of the logged behaviour serves all policies

    updates: int = option(20000, integer(1))
    batch_size: int = option(256, integer(1))
    hidden: tuple[int, ...] = option((256, 256), widths)
    learning_rate: float = option(3e-4, number(above=0))
    target_rate: float | None = option(None, optional(number(above=0, most=1)))

    def _evaluate(self, actions: PolicyActions, checkpoint: str | os.PathLike | None) -> Evaluated:
        log = actions.log
        if not self.shared:
            actions.tabulate()
        elif not log.followed.any():
            raise ValueError(
                "log: no row is followed by another row of its episode, so no next action is known; pass the rows in "
                "the order in which they were logged"
            )
        rate = self.target_rate
        if rate is None:  # leaves e^-5 of the way, within bounds: faster targets make values oscillate
            rate = min(max(5 / (self.updates * decay(log.transitions, self.discount)), 0.005), 0.1)
        remaining = _lag(log, self.updates, rate, self.discount)
        learner = CriticLearner(self, actions, rate)
        identity = log.identity if self.shared else actions.identity
        curve = learn(learner, self.updates, self.name, checkpoint, lambda: (self, actions.seed, *identity()))
        values = learner.mean_values(log.evaluated_rows() if self.shared else log.initial)
        return values, None, {"lag": remaining, "curve": curve}


@dataclass(frozen=True)
class BehaviourQ(FQE):
    """Mean over logged states of a SARSA critic at the policy's actions; one critic serves all policies.

    The value is what follows when the policy's action is taken once and the logged behaviour goes on from there. It is
    not the return of the policy, but ranks policies well at little cost. It is the mean over at most 65,536 logged
    states, evenly spaced. A checkpoint of a run with other policies can be resumed. Options, diagnostics and warnings
    are those of `FQE`.
    """

    shared: ClassVar[bool] = True

    updates: int = option(10000, integer(1))


def _lag(log: Log, updates: int, rate: float, discount: float) -> float:
    """Return the share of the way to their fixed point that critics have left after training, and warn if it is large.

    If the critic follows its target at once, each update closes `rate` (1 - γ) of the distance. The share is smaller
    where episodes end early, and 0 where each has one step, after which no value follows.
    """
    following = log.transitions.longest - 1  # steps whose values follow
    weight = min(following, 1 / (1 - discount) if discount < 1 else math.inf)
    remaining = math.exp(-updates * rate / weight) if weight else 0.0
    if remaining > _LARGEST_LAG:
        log.doubt(
            f"{updates} updates took critics only {percent(1 - remaining)} of the way to their values, unless episodes "
            "end early; raise updates or target_rate"
        )
    return remaining


def value_scale(transitions: Transitions, discount: float) -> tuple[float, float]:
    """Return mean and standard deviation of the discounted returns-to-go, the units in which critics learn values."""
    rewards = transitions.rewards.astype(np.float64)
    endless = rewards.mean() / decay(transitions, discount)
    to_go = np.empty(len(rewards))
    first, last = transitions.episodes[:-1], transitions.episodes[1:] - 1
    following = np.where(transitions.terminals[last], 0.0, endless)  # of timeouts
    for steps_back in range(int((last - first).max()) + 1):
        alive = last - steps_back >= first
        rows = last[alive] - steps_back
        following[alive] = rewards[rows] + discount * following[alive]
        to_go[rows] = following[alive]
    return float(to_go.mean()), max(float(to_go.std()), float(rewards.std()), 1e-6 * abs(endless)) or 1e-6


class CriticLearner(Learner):
    """Regression of critics, one of each policy or one for all, on r + γ (1 - terminal) Q_target(s', a').

    Targets are clipped to the range that rewards allow. Values are those of the target networks, which average the
    last updates, of which each has the weight `target_rate`.
    """

    def __init__(self, options: FQE, actions: PolicyActions, target_rate: float):
        self.actions, self.shared, self.target_rate = actions, options.shared, target_rate
        self.log, self.discount = actions.log, options.discount
        log, seed = self.log, actions.seed
        rows = np.flatnonzero(log.followed) if self.shared else np.arange(log.count)
        self.batches = Batches([rows], options.batch_size, seed)
        self.mean, self.scale = value_scale(log.transitions, self.discount)  # outputs and errors are of order 1
        self.range = [(each - self.mean) / self.scale for each in value_range(log.transitions, self.discount)]
        alive = self.discount * (1 - log.terminals)
        # The value after a terminal is 0, which is not 0 in the critics' units.
        self._outcomes = torch.stack([(log.rewards - self.mean * (1 - alive)) / self.scale, alive], 1)
        copies = 1 if self.shared else len(actions.policies)
        self.critic = ActionValue(log, options.hidden, rate=options.learning_rate, copies=copies, seed=seed)
        self.networks = {"critic": self.critic}

    def step(self, update: int) -> Tensor:
        """Update all critics once and return their losses (C,)."""
        log = self.log
        rows = self.batches(update)[0]  # (B,)
        targets = self._targets(rows, update)
        actions = torch.embedding(log.actions, rows)
        return self.critic.fit(log.states(rows), actions, targets, average_rate=self.target_rate)

    @torch.no_grad()
    def _targets(self, rows: Tensor, update: int) -> Tensor:  # (C, B)
        log = self.log
        next_rows = log.next[rows]
        actions = log.actions[next_rows.clamp(max=log.count - 1)] if self.shared else self.actions(next_rows, update)
        following = self.critic.average.values(log.states(next_rows), actions)
        offset, alive = torch.embedding(self._outcomes, rows).T
        return (offset + alive * following).clamp_(*self.range)

    @torch.no_grad()
    def mean_values(self, rows: Tensor) -> np.ndarray:
        """Return the mean value (P,) float64 of each policy's actions in rows (B,) of the table."""
        count, means = len(self.actions.policies), []
        bounds = pairwise(block_bounds(count) if self.shared else [0, count])
        for part in each([slice(*pair) for pair in bounds if pair[0] < pair[1]], "evaluating", "block"):
            actions, policies = self.actions.of(part), part.stop - part.start
            total = torch.zeros(policies, dtype=torch.float64, device="cpu")
            for chunk in rows.split(max(64, _CHUNK // policies)):
                states = self.log.states(chunk)
                for draw in range(actions.draws):
                    taken = actions(chunk, draw)  # (P, B, dim_a)
                    if self.shared:  # one network reads the rows of all policies
                        values = self.critic.average.values(states.repeat(policies, 1), taken.flatten(0, 1))
                    else:
                        values = self.critic.average.values(states, taken)
                    total += values.view(policies, -1).double().sum(1)
            means.append(total / (len(rows) * actions.draws) * self.scale + self.mean)
        return torch.cat(means).numpy()
