"""Stationary distribution corrections of all policies at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runtime.progress import progress_bar
from .estimates import warn_of
from .estimator import Estimator, Problem
from .learning import Batches, Learner, learn, mean_of_known
from .log import Log, PolicyActions
from .networks import ActionValue

_CHUNK = 1 << 16
_FEWEST_EFFECTIVE_ROWS = 100


@dataclass(frozen=True)
class DualDICE(Estimator):
    """Discounted stationary distribution corrections (Nachum 2019).

    Networks ν and ζ of all policies are trained together on

        min over ν, max over ζ of E[(ν(s,a) - γ (1 - terminal) ν(s',a')) ζ(s,a) - f*(ζ(s,a))] - (1 - γ) E[ν(s0,a0)]

    over logged (s, a, s') and a' of the policy, whose ζ is the ratio of the policy's state-action distribution to the
    log's. With f(x) = |x|^p / p, the convex conjugate f*(y) is |y|^q / q, 1/p + 1/q = 1.

    The value is the discounted return Σ ζ r / Σ ζ (1 - γ (1 - terminal)) over the log. The denominator is what the
    ratios' weight must be, and normalises them; without terminals that is the average reward by ratios over 1 - γ.

    Attributes:
        exponent: p, more than 1; 2 by default, the paper also uses 1.5.
        nu_rate, zeta_rate: Adam's learning rates.
        average: share of the updates, the last ones, whose weights of ζ are averaged.
        others: see `FQE`.

    Diagnostics:
        effective_sample_size: (P,) (Σ ζ)² / Σ ζ² in rows, of positive ratios.
        mass: (P,) what the denominator is before normalising, 1 if the ratios are right.
        ratios: a callable of rows of the log → (P, B) normalised ratios.
        dropped_rows: (P,), see `FQE`.
        curve: updates, seconds, loss and values (P,).

    Warns:
        UncertainEstimateWarning: the ratios of a policy rest on a handful of rows, or their mass is far from 1.
    """

    updates: int = 20000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    nu_rate: float = 1e-4
    zeta_rate: float = 1e-3
    exponent: float = 2.0
    average: float = 0.25
    draws: int = 4
    memory: int = 1 << 30

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, discount, seed = problem.log, problem.discount, problem.seed
        actions = problem.actions(draws=self.draws, memory=self.memory)
        with problem.timings.stage("training"):
            learner = DualDICELearner(self, log, actions, discount, seed)
            curve = learn(
                learner,
                self.updates,
                description="DualDICE",
                watch=lambda: learner.values(log.evaluated_rows(4096))[0].tolist(),
                checkpoint=problem.checkpoint,
                identity=lambda: (self, discount, seed, *actions.identity()),
                progress=problem.progress,
            )
        with problem.timings.stage("evaluation"):
            values, mass, effective = learner.values(log.evaluated_rows(log.count), progress=problem.progress)
        names = problem.names
        doubtful = np.flatnonzero((effective < _FEWEST_EFFECTIVE_ROWS) | (np.abs(mass - 1) > 0.5))
        warn_of(
            {names[i]: f"{effective[i]:.0f} effective rows, mass {mass[i]:.2f}" for i in doubtful},
            "DualDICE cannot be trusted for {}: too few effective rows, or ratios whose mass is far from 1",
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
    """(P, B) of rows of the log."""
    return _ratios(zeta, log, torch.as_tensor(rows, device=log.device)).cpu().numpy() / mass[:, None]


@torch.no_grad()
def _ratios(zeta: ActionValue, log: Log, rows: Tensor) -> Tensor:
    """(P, B) float64, not normalised."""
    return zeta(log.states(rows), log.actions[rows]).double()


class DualDICELearner(Learner):
    def __init__(self, options: DualDICE, log: Log, actions: PolicyActions, discount: float, seed: int):
        self.options, self.log, self.actions, self.discount = options, log, actions, discount
        self.batches = Batches([np.arange(log.count)], options.batch_size, seed, log.device)
        starts = log.initial.cpu().numpy()
        self.initial = Batches([starts], options.batch_size, seed + 1, log.device)
        copies = len(actions.policies)

        def network(seed: int) -> ActionValue:
            return ActionValue(
                log.state_dim, log.action_dim, log.discrete, options.hidden, copies=copies, seed=seed, device=log.device
            )

        self.nu, self.zeta = network(seed), network(seed + 1)
        self.averaged = self.zeta.frozen_copy()
        self.trained = {
            f"{name}.{i}": parameter
            for name, value in (("nu", self.nu), ("zeta", self.zeta), ("averaged", self.averaged))
            for i, parameter in enumerate(value.parameters)
        }
        betas = (0.0, 0.99)
        self.optimizers = {
            "nu_adam": torch.optim.Adam(self.nu.parameters, lr=options.nu_rate, betas=betas, fused=True),
            "zeta_adam": torch.optim.Adam(
                self.zeta.parameters, lr=options.zeta_rate, betas=betas, fused=True, maximize=True
            ),
        }

    def step(self, update: int) -> Tensor:
        log, conjugate = self.log, self.options.exponent / (self.options.exponent - 1)
        rows, starts = self.batches(update)[0], self.initial(update)[0]
        following = log.next[rows]
        states, actions = log.states(rows), log.actions[rows]
        alive = self.discount * (1 - log.terminals[rows])
        # One pass for next and initial states.
        asked = torch.cat([following, starts])
        nu_there = self.nu(log.states(asked), self.actions(asked, update))
        nu_next, nu_start = nu_there.split([len(rows), len(starts)], 1)
        residual = self.nu(states, actions) - alive * nu_next
        zeta = self.zeta(states, actions)
        penalty = zeta.square() / 2 if conjugate == 2 else zeta.abs().pow(conjugate) / conjugate
        inner = mean_of_known(residual * zeta - penalty, self.actions.known(rows))
        loss = inner - (1 - self.discount) * nu_start.mean(1)
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss.sum().backward()
        for optimizer in self.optimizers.values():
            optimizer.step()
        first = self.options.updates - max(1, int(self.options.average * self.options.updates))
        self.averaged.network.move_toward(self.zeta.network, 1 / max(1, update - first + 1))
        return loss.detach()

    def values(self, rows: Tensor, *, progress: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(P,) each: discounted return, mass, effective sample size."""
        sums = torch.zeros(4, len(self.actions.policies), dtype=torch.float64, device="cpu")
        with progress_bar(len(rows), "evaluating", "row", show=progress) as bar:
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
