"""Stationary distribution corrections of all policies at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ranking.estimates import warn_about
from ..runtime.adam import Adam
from ..runtime.fields import integer, number, option, widths
from ..runtime.progress import progress_bar
from .learning import Batches, Learner, learn, masked_mean
from .log import Log
from .networks import ActionValue
from .policy_actions import PolicyActions
from .reward_estimator import Problem, RewardEstimator

_CHUNK = 1 << 16
_FEWEST_EFFECTIVE_ROWS = 100
_WATCHED_ROWS = 4096
_AVERAGED = 0.25  # share of the updates, the last ones, over which the weights of ζ are averaged


@dataclass(frozen=True)
class DualDICE(RewardEstimator):
    """Discounted stationary distribution corrections (Nachum et al., 2019).

    The networks ν and ζ of all policies are trained together on

        min over ν, max over ζ of E[(ν(s,a) - γ (1 - terminal) ν(s',a')) ζ(s,a) - ζ(s,a)² / 2] - (1 - γ) E[ν(s0,a0)]

    over logged (s, a, s') and the policy's a'. At the optimum, ζ is the ratio of the policy's state-action distribution
    to the log's. The weights of ζ are averaged over the last quarter of the updates.

    The value is the discounted return Σ ζ r / Σ ζ (1 - γ (1 - terminal)) over the log. The denominator normalises the
    ratios: it is what their sum must be. Without terminals, the value is the weighted mean reward, divided by 1 - γ.

    Attributes:
        updates: See `FQE`.
        batch_size: See `FQE`.
        hidden: See `FQE`.
        nu_rate: Learning rate of Adam for ν.
        zeta_rate: Learning rate of Adam for ζ.
        draws: See `FQE`.
        memory: See `FQE`.

    Diagnostics:
        effective_sample_size: (P,) (Σ ζ)² / Σ ζ² over positive ratios, in rows.
        mass: (P,) the denominator before normalisation; 1 if the ratios are right.
        ratios: Function of rows (B,) of the log that returns normalised ratios (P, B).
        dropped_rows: See `FQE`.
        curve: Updates, seconds, loss and values (P,) at each record.
        allowed: See `RewardEstimator`.

    Warns:
        UncertainEstimateWarning: The ratios of a policy have fewer than 100 effective rows or a mass below 0.5 or above
            1.5, or a value lies outside what rewards allow.
    """

    updates: int = option(20000, integer(1))
    batch_size: int = option(256, integer(1))
    hidden: tuple[int, ...] = option((256, 256), widths)
    nu_rate: float = option(1e-4, number(above=0))
    zeta_rate: float = option(1e-3, number(above=0))
    draws: int = option(4, integer(1))
    memory: float = option(1 << 30, number())

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, request, timings = problem.log, problem.request, problem.request.timings
        if self.discount == 1:
            raise ValueError("DualDICE needs a discount below 1, such as 0.99; FQE and importance weighting take 1")
        actions = problem.actions(draws=self.draws, memory=self.memory)
        with timings.stage("training"):
            learner = DualDICELearner(self, actions, request.seed)
            curve = learn(
                learner,
                self.updates,
                description="DualDICE",
                watch=lambda: learner.values(log.evaluated_rows(_WATCHED_ROWS))[0].tolist(),
                checkpoint=request.checkpoint,
                identity=lambda: (self, request.seed, *actions.identity()),
            )
        with timings.stage("evaluation"):
            values, mass, effective = learner.values(log.evaluated_rows(log.count))
        doubtful = np.flatnonzero((effective < _FEWEST_EFFECTIVE_ROWS) | (np.abs(mass - 1) > 0.5))
        warn_about(
            {problem.names[i]: f"{effective[i]:.0f} effective rows, mass {mass[i]:.2f}" for i in doubtful},
            "DualDICE cannot be trusted for {}: too few effective rows, or ratios whose mass is far from 1; raise "
            "updates, or rely on another estimator for these policies",
        )
        diagnostics = {
            "effective_sample_size": effective,
            "mass": mass,
            "curve": curve,
            "dropped_rows": actions.dropped_rows,
            "ratios": partial(_normalised_ratios, learner.averaged, log, mass),
        }
        return values, None, diagnostics


def _normalised_ratios(zeta: ActionValue, log: Log, mass: np.ndarray, rows: Any) -> np.ndarray:
    """Return normalised ratios (P, B) of rows (B,) of the log."""
    return _ratios(zeta, log, torch.as_tensor(rows, device=log.device)).cpu().numpy() / mass[:, None]


@torch.no_grad()
def _ratios(zeta: ActionValue, log: Log, rows: Tensor) -> Tensor:
    """Return unnormalised ratios (P, B) float64 of rows (B,) of the log."""
    return zeta(log.states(rows), log.actions[rows]).double()


class DualDICELearner(Learner):
    """Networks ν and ζ of P policies.

    Args:
        options: Options of the estimator.
        actions: What the policies do in the states of the log.
        seed: Seed of initial weights and mini-batches.
    """

    def __init__(self, options: DualDICE, actions: PolicyActions, seed: int):
        self.options, self.actions, self.discount = options, actions, options.discount
        self.log = log = actions.log
        seed, other = 2 * seed, 2 * seed + 1  # no two runs share a stream, as seed + 1 would
        self.batches = Batches([np.arange(log.count)], options.batch_size, seed, log.device)
        starts = log.initial.cpu().numpy()
        self.initial = Batches([starts], options.batch_size, other, log.device)
        copies = len(actions.policies)

        self.nu, self.zeta = (
            ActionValue(log.units, options.hidden, copies=copies, seed=each) for each in (seed, other)
        )
        self.averaged = self.zeta.frozen_copy()
        self.trained = {
            f"{name}.{i}": parameter
            for name, value in (("nu", self.nu), ("zeta", self.zeta), ("averaged", self.averaged))
            for i, parameter in enumerate(value.parameters)
        }
        betas = (0.0, 0.99)
        self.optimizers = {
            "nu_adam": Adam(self.nu.parameters, options.nu_rate, betas=betas),
            "zeta_adam": Adam(self.zeta.parameters, options.zeta_rate, betas=betas, maximize=True),
        }

    def step(self, update: int) -> Tensor:
        """Update all networks once and return their losses (P,)."""
        log = self.log
        rows, starts = self.batches(update)[0], self.initial(update)[0]
        states, actions = log.states(rows), log.actions[rows]
        alive = self.discount * (1 - log.terminals[rows])
        # One pass for next and initial states.
        evaluated = torch.cat([log.next[rows], starts])
        nu_evaluated = self.nu(log.states(evaluated), self.actions(evaluated, update))
        nu_next, nu_start = nu_evaluated.split([len(rows), len(starts)], 1)
        residual = self.nu(states, actions) - alive * nu_next
        zeta = self.zeta(states, actions)
        inner = masked_mean(residual * zeta - zeta.square() / 2, self.actions.has_next_action(rows))
        loss = inner - (1 - self.discount) * nu_start.mean(1)
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss.sum().backward()
        for optimizer in self.optimizers.values():
            optimizer.step()
        first = self.options.updates - max(1, int(_AVERAGED * self.options.updates))
        self.averaged.network.move_toward(self.zeta.network, 1 / max(1, update - first + 1))
        return loss.detach()

    def values(self, rows: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return discounted returns, masses and effective sample sizes, (P,) float64 each, over rows of the log."""
        sums = torch.zeros(4, len(self.actions.policies), dtype=torch.float64, device="cpu")
        with progress_bar(len(rows), "evaluating", "row") as bar:
            for chunk in rows.split(max(64, _CHUNK // len(self.actions.policies))):
                ratios = _ratios(self.averaged, self.log, chunk).cpu()
                rewards, terminals = (x[chunk].double().cpu() for x in (self.log.rewards, self.log.terminals))
                positive = ratios.clamp(min=0)
                sums[0] += ratios @ rewards
                sums[1] += ratios @ (1 - self.discount * (1 - terminals))
                sums[2] += positive.sum(1)
                sums[3] += positive.square().sum(1)
                bar.update(len(chunk))
        weight = sums[1]
        values = sums[0] / torch.where(weight.abs() > 1e-12, weight, torch.nan)
        mass = weight / len(rows) / (1 - self.discount)
        effective = sums[2].square() / sums[3].clamp(min=1e-300)
        return values.nan_to_num(0.0).numpy(), mass.numpy(), effective.numpy()
