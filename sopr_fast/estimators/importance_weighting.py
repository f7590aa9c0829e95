"""Per-decision, self-normalised importance weighting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..policies import Layout, Policy
from ..policies.actor import LARGEST
from ..runtime.progress import progress_bar
from .behaviour import EDGE, BehaviourPolicy
from .estimates import warn_of
from .estimator import Estimator, Problem
from .learning import learn
from .log import Log

_ROWS = 16384
_FEWEST_EFFECTIVE_EPISODES = 5
_NEGLIGIBLE = 0.1  # of the discounted weight of steps


@dataclass(frozen=True)
class ImportanceWeighting(Estimator):
    """Per-decision importance weighting (Precup 2000), self-normalised over episodes at every step, in log space.

    The behaviour's log-probabilities are the log's own where it has them, else a tanh-normal mixture (probabilities
    of discrete actions) fitted to it. A deterministic policy has no density: it counts as one with normal noise of
    standard deviation `noise`, before tanh (as in policy_eval) if all its and the log's actions lie within ±1, else
    around its action. Actions at ±1 are taken just inside: at 1 - 1e-4 for noise and where the behaviour is fitted.

    The value is the discounted return over the length of the longest episode. Episodes that a terminal ended go on with
    reward 0 and their last weight; those that were cut drop out where they end, since what followed is not known.

    Attributes:
        clip: bounds of every step's log-ratio, or None; policy_eval's are (-6, 2).
        noise: standard deviation around deterministic actions, before tanh or in action units.
        bootstraps: draws of episodes whose spread is the standard error.
        fitted: fit the behaviour even where the log has its log-probabilities.
        updates, batch_size, hidden, components, learning_rate: of the behaviour's fit.

    Diagnostics:
        effective_by_step: (P, T) in episodes, the smaller of (Σ w)² / Σ w² and Σ w (weights of a policy that the log
            covers average 1).
        effective_sample_size: (P,) the smallest of them but for steps with a tenth of the discounted weight.
        curve, held_out_log_prob: of the behaviour's fit, where it was fitted.

    Warns:
        UncertainEstimateWarning: fewer than five effective episodes at steps with over a tenth of the discounted
            weight; the policy's standard error is nan.
    """

    clip: tuple[float, float] | None = None
    noise: float = 0.1
    bootstraps: int = 100
    fitted: bool = False
    updates: int = 5000
    batch_size: int = 256
    hidden: tuple[int, ...] = (256, 256)
    components: int = 5
    learning_rate: float = 1e-3

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, found = problem.log, problem.policies
        diagnostics: dict[str, Any] = {}
        with problem.timings.stage("behaviour"):
            if log.transitions.log_probs is not None and not self.fitted:
                behaviour, edge = log.transitions.log_probs.astype(np.float64), LARGEST
            else:
                behaviour, edge = self._fit(problem, diagnostics), EDGE
        with problem.timings.stage("weighting"):
            bootstrap = np.random.default_rng([problem.seed, 4])
            episodes = len(log.transitions.episodes) - 1
            resamples = bootstrap.multinomial(episodes, np.full(episodes, 1 / episodes), self.bootstraps)
            parts = []
            with progress_bar(len(found), "weighting", "policy", show=problem.progress) as bar:
                for policy in found:
                    ratios = self._log_probs(policy, log, problem.layout, edge) - behaviour
                    if self.clip is not None:
                        ratios = ratios.clip(*self.clip)
                    parts.append(_weigh(ratios, log, problem.discount, resamples))
                    bar.update()
        values, replicates, by_step = (np.stack(part) for part in zip(*parts, strict=True))
        discounts = problem.discount ** np.arange(by_step.shape[1])
        effective = np.array([_lower_quantile(sizes, discounts) for sizes in by_step])
        low = effective < _FEWEST_EFFECTIVE_EPISODES
        replicates[low] = np.nan
        names = problem.names
        warn_of(
            {names[i]: f"{effective[i]:.2g}" for i in np.flatnonzero(low)},
            f"the log hardly covers {{}}: fewer than {_FEWEST_EFFECTIVE_EPISODES} effective episodes at steps that "
            "matter, so importance weighting says next to nothing of them",
        )
        diagnostics |= {"effective_sample_size": effective, "effective_by_step": by_step}
        return values, replicates if self.bootstraps > 1 else None, diagnostics

    def _fit(self, problem: Problem, diagnostics: dict[str, Any]) -> np.ndarray:
        log, seed = problem.log, problem.seed
        behaviour = BehaviourPolicy(
            log,
            hidden=self.hidden,
            components=self.components,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            seed=seed,
        )
        diagnostics["curve"] = learn(
            behaviour,
            self.updates,
            description="behaviour",
            checkpoint=problem.checkpoint,
            identity=lambda: (
                [self.updates, self.batch_size, self.hidden, self.components, self.learning_rate],
                seed,
                *log.identity(),
            ),
            progress=problem.progress,
        )
        log_probs = behaviour.log_probs().numpy()
        diagnostics["held_out_log_prob"] = float(log_probs[behaviour.held_out].mean())
        return log_probs

    def _log_probs(self, policy: Policy, log: Log, layout: Layout, edge: float) -> np.ndarray:
        """(N,) float64 of the logged actions under a policy; if all lie within ±1, of those beyond `edge` at it."""
        actions, within = log.actions.cpu(), False
        if layout.kind != "discrete":
            actions = torch.from_numpy(log.transitions.actions)
            within = bool((actions.abs() <= 1).all())
            if within:
                actions = actions.clamp(-edge, edge)
        found = np.empty(log.count)
        taken = []  # by a deterministic policy
        for first in range(0, log.count, _ROWS):
            rows = slice(first, first + _ROWS)
            states, source = log.raw_states[: log.count][rows], log.source[: log.count][rows]
            output = policy.output(states, source)
            if output.kind == "action":
                taken.append(output.mean)
            elif output.kind == "discrete":
                found[rows] = (output.mean.double() * actions[rows]).sum(1).log()
            else:
                found[rows] = policy.log_prob(states, actions[rows], source)
        if taken:
            found[:] = self._noisy(torch.cat(taken), actions, within)
        # A normal of standard deviation 0 has no density: nan.
        return np.where(np.isnan(found), -np.inf, found)

    def _noisy(self, taken: Tensor, actions: Tensor, within: bool) -> Tensor:
        """(N,) float64 log-density of actions (N, dim_a), all `within` ±1 or not, under noise around those taken."""
        taken, actions = taken.double(), actions.double()
        units: Tensor | float = 0.0
        if within and (taken.abs() <= 1).all():
            taken, actions = (x.clamp(-EDGE, EDGE) for x in (taken, actions))
            units = -torch.log1p(-actions.square()).sum(1)
            taken, actions = taken.atanh(), actions.atanh()
        normal = -0.5 * ((actions - taken) / self.noise).square() - math.log(self.noise) - 0.5 * math.log(2 * math.pi)
        return normal.sum(1) + units


def _lower_quantile(sizes: np.ndarray, weights: np.ndarray) -> float:
    """The least size of which steps with a negligible share of the weight fall short."""
    order = sizes.argsort()
    share = weights[order].cumsum() / weights.sum()
    return sizes[order[np.searchsorted(share, _NEGLIGIBLE, side="right")]]


def _weigh(
    log_ratios: np.ndarray, log: Log, discount: float, resamples: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Value, bootstrap values (R,) and effective episodes at every step (T,) of one policy."""
    transitions = log.transitions
    episodes = transitions.episodes
    first, length = episodes[:-1], np.diff(episodes)
    ended = transitions.terminals[episodes[1:] - 1]
    horizon = int(length.max())
    cumulative = np.zeros(len(length))
    value, replicates, effective = 0.0, np.zeros(len(resamples)), np.zeros(horizon)
    for t in range(horizon):
        alive = t < length
        rows = first[alive] + t
        cumulative[alive] += log_ratios[rows]
        present = alive | ended
        log_weights = np.where(present, cumulative, -np.inf)
        rewards = np.zeros(len(length))
        rewards[alive] = transitions.rewards[rows]
        top = log_weights.max()
        weights = np.exp(log_weights - top) if np.isfinite(top) else np.zeros(len(length))
        total = weights.sum()
        if total > 0:
            log_total = top + math.log(total)
            effective[t] = min(total**2 / (weights**2).sum(), math.exp(min(log_total, 700.0)))
        else:
            # No logged episode is possible under the policy: the log's own mean, and an effective size of 0.
            weights = present.astype(float)
        value += discount**t * float(weights @ rewards / weights.sum())
        drawn = resamples @ weights
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates += discount**t * np.where(drawn > 0, resamples @ (weights * rewards) / drawn, 0.0)
    return value, replicates, effective
