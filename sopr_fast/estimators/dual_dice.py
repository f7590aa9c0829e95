"""Stationary distribution corrections of all policies at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runtime.checks import integer, number, option, widths
from .learning import Batches, Learner, learn
from .networks import ActionValue
from .policy_actions import PolicyActions
from .reward_estimator import Evaluated, RewardEstimator

_CHUNK = 1 << 16
_FEWEST_EFFECTIVE_ROWS = 100
_AVERAGED = 0.25  # share of the updates, the last ones, over which the weights of ζ are averaged


@dataclass(frozen=True)
class DualDICE(RewardEstimator):
    """Discounted stationary distribution corrections (Nachum et al., 2019).

    The networks ν and ζ of all policies are trained together on

        min over ν, max over ζ of E[(ν(s,a) - γ (1 - terminal) ν(s',a')) ζ(s,a) - ζ(s,a)² / 2] - (1 - γ) E[ν(s0,a0)]

    over logged (s, a, s') and the policy's a'. At the optimum, ζ is the ratio of the policy's state-action distribution
    to the log's. The weights of ζ are averaged over the last quarter of the updates.

    The value is the discounted return Σ ζ r / Σ ζ (1 - γ (1 - terminal)) over the log. Without terminals, it is the
    weighted mean reward, divided by 1 - γ.

    Attributes:
        updates, batch_size, hidden: See `FQE`.
        nu_rate: Learning rate of Adam for ν.
        zeta_rate: Learning rate of Adam for ζ.

    Diagnostics:
        effective_sample_size: (P,) (Σ ζ)² / Σ ζ² over positive ratios, in rows.
        mass: (P,) the denominator before normalisation; 1 if the ratios are right.
        curve: See `FQE`.

    Warns:
        UncertainEstimateWarning: The ratios of a policy have fewer than 100 effective rows or a mass below 0.5 or above
            1.5; see also `RewardEstimator`.
    """

    updates: int = option(20000, integer(1))
    batch_size: int = option(256, integer(1))
    hidden: tuple[int, ...] = option((256, 256), widths)
    nu_rate: float = option(1e-4, number(above=0))
    zeta_rate: float = option(1e-3, number(above=0))

    def _evaluate(self, actions: PolicyActions, checkpoint: str | os.PathLike | None) -> Evaluated:
        if self.discount == 1:
            raise ValueError("DualDICE needs a discount below 1, such as 0.99; FQE and importance weighting take 1")
        actions.tabulate()
        learner, identity = DualDICELearner(self, actions), actions.identity
        curve = learn(learner, self.updates, self.name, checkpoint, lambda: (self, actions.seed, *identity()))
        values, mass, effective = learner.values()
        doubtful = np.flatnonzero((effective < _FEWEST_EFFECTIVE_ROWS) | (np.abs(mass - 1) > 0.5))
        actions.log.doubt(
            "DualDICE cannot be trusted for {}: too few effective rows, or ratios whose mass is far from 1; raise "
            "updates, or rely on another estimator for these policies",
            {actions.policies[i].name: f"{effective[i]:.0f} effective rows, mass {mass[i]:.2f}" for i in doubtful},
        )
        return values, None, {"effective_sample_size": effective, "mass": mass, "curve": curve}


class DualDICELearner(Learner):
    """Networks ν and ζ of P policies."""

    def __init__(self, options: DualDICE, actions: PolicyActions):
        self.options, self.actions, self.discount = options, actions, options.discount
        self.log = log = actions.log
        seed, other = 2 * actions.seed, 2 * actions.seed + 1  # no two runs share a stream, as seed + 1 would
        self.batches = Batches([np.arange(log.count)], options.batch_size, seed)
        self.initial = Batches([log.initial.numpy()], options.batch_size, other)
        networks: dict[str, Any] = {"copies": len(actions.policies), "betas": (0.0, 0.99)}
        self.nu = ActionValue(log, options.hidden, seed=seed, rate=options.nu_rate, **networks)
        self.zeta = ActionValue(log, options.hidden, seed=other, rate=options.zeta_rate, **networks)
        self.networks = {"nu": self.nu, "zeta": self.zeta}

    def step(self, update: int) -> Tensor:
        """Update all networks once and return their losses (P,)."""
        log = self.log
        rows, starts = self.batches(update)[0], self.initial(update)[0]
        states, actions = log.states(rows), log.actions[rows]
        alive = self.discount * (1 - log.terminals[rows])
        # One pass for next and initial states.
        evaluated = torch.cat([log.next[rows], starts])
        nu_evaluated = self.nu.values(log.states(evaluated), self.actions(evaluated, update))
        nu_next, nu_start = nu_evaluated.split([len(rows), len(starts)], 1)
        residual = self.nu.values(states, actions) - alive * nu_next
        zeta = self.zeta.values(states, actions)
        loss = (residual * zeta - zeta.square() / 2).mean(1) - (1 - self.discount) * nu_start.mean(1)
        down, up = torch.autograd.grad(loss.sum(), [self.nu.parameters, self.zeta.parameters])
        self.nu.adam.step([down])
        self.zeta.adam.step([-up])
        first = self.options.updates - max(1, int(_AVERAGED * self.options.updates))
        self.zeta.average.parameters.lerp_(self.zeta.parameters.detach(), 1 / max(1, update - first + 1))
        return loss.detach()

    @torch.no_grad()
    def values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return discounted returns, masses and effective sample sizes, (P,) float64 each, over all rows of the log."""
        log, policies = self.log, len(self.actions.policies)
        sums = torch.zeros(4, policies, dtype=torch.float64, device="cpu")
        for chunk in torch.arange(log.count, device="cpu").split(max(64, _CHUNK // policies)):
            ratios = self.zeta.average.values(log.states(chunk), log.actions[chunk]).double()  # (P, B)
            rewards, terminals = (x[chunk].double() for x in (log.rewards, log.terminals))
            positive = ratios.clamp(min=0)
            sums[0] += ratios @ rewards
            sums[1] += ratios @ (1 - self.discount * (1 - terminals))
            sums[2] += positive.sum(1)
            sums[3] += positive.square().sum(1)
        weight = sums[1]
        values = sums[0] / torch.where(weight.abs() > 1e-12, weight, torch.nan)
        mass = weight / log.count / (1 - self.discount)
        effective = sums[2].square() / sums[3].clamp(min=1e-300)
        return values.nan_to_num(0.0).numpy(), mass.numpy(), effective.numpy()
