"""Per-decision, self-normalised importance weighting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import Layout, Policy
from ..inputs.policies.actor import LARGEST
from ..ranking.estimates import warn_about
from ..runtime.distributed import share_policies
from ..runtime.fields import integer, interval, number, option, optional, widths
from ..runtime.options import current
from .behaviour import EDGE, BehaviourPolicy
from .learning import learn
from .log import Log
from .reward_estimator import Problem, RewardEstimator

_FEWEST_EFFECTIVE_EPISODES = 5
_ROUNDING = 1e-4  # of log-probabilities
_NEGLIGIBLE = 0.1  # share of the discounted weight of steps


@dataclass(frozen=True)
class ImportanceWeighting(RewardEstimator):
    """Per-decision importance weighting (Precup et al., 2000), self-normalised over episodes at every step.

    The log-probabilities of the behaviour are those in the log, if it has any. Otherwise a mixture of five normals
    behind tanh is fitted to the log (probabilities for discrete actions). A deterministic policy has no density, so it
    gets normal noise with standard deviation `noise`: before tanh if all its actions and all logged ones lie within
    ±1 (as in policy_eval), else around its action. For noise and for a fitted behaviour, actions are clipped to
    ±(1 - 1e-4).

    The value is the discounted return over the length of the longest episode. An episode that ended at a terminal
    continues with reward 0 and its last weight. One that was cut drops out where it ends, because what followed is
    unknown.

    Attributes:
        clip: Bounds (low, high) of the log-ratio of every step, or None; policy_eval's are (-6, 2).
        noise: Standard deviation of the noise of deterministic policies, before tanh or in units of actions.
        bootstraps: Bootstrap samples of the episodes; the standard deviation of their values is the standard error.
        updates: Gradient steps of the behaviour's fit.
        batch_size: Rows per step of the fit.
        hidden: Widths of the hidden layers of the fit.
        learning_rate: Learning rate of Adam.

    Diagnostics:
        effective_by_step: (P, T) effective number of episodes at each step: the smaller of (Σ w)² / Σ w² and Σ w, since
            weights of a policy that the log covers have mean 1.
        effective_sample_size: (P,) smallest of these, without the worst steps that hold up to a tenth of the discounted
            weight.
        curve: Updates, seconds and loss of the fit, if there was one.
        held_out_log_prob: Mean log-probability of held-out actions under the fit, if there was one.
        allowed: See `RewardEstimator`.

    Warns:
        UncertainEstimateWarning: A policy has an `effective_sample_size` below 5; its standard error is NaN.
    """

    clip: tuple[float, float] | None = option(None, optional(interval))
    noise: float = option(0.1, number(above=0))
    bootstraps: int = option(100, integer(0))
    updates: int = option(5000, integer(1))
    batch_size: int = option(256, integer(1))
    hidden: tuple[int, ...] = option((256, 256), widths)
    learning_rate: float = option(1e-3, number(above=0))

    def _evaluate(self, problem: Problem) -> tuple[np.ndarray, np.ndarray | None, dict[str, Any]]:
        log, request, policies = problem.log, problem.request, problem.policies
        diagnostics: dict[str, Any] = {}
        with request.timings.stage("behaviour"):
            if log.transitions.log_probs is not None:
                behaviour, edge = log.transitions.log_probs.astype(np.float64), LARGEST
                if log.discrete and (behaviour > _ROUNDING).any():
                    row = int(log.transitions.source[behaviour.argmax()])
                    raise ValueError(
                        f"log: log-probability {behaviour.max():.4g} at row {row}; those of discrete actions are at "
                        "most 0: pass probabilities as columns={'probabilities': …} of sopr_fast.load_log"
                    )
            else:
                behaviour, edge = self._fit(problem, diagnostics), EDGE
        with request.timings.stage("weighting"):
            bootstrap = np.random.default_rng([request.seed, 4])
            episodes = len(log.transitions.episodes) - 1
            resamples = bootstrap.multinomial(episodes, np.full(episodes, 1 / episodes), self.bootstraps)

            def weigh(part: slice) -> Tensor:
                policy = policies[part.start]
                ratios = self._log_probs(policy, log, problem.layout, edge) - behaviour
                if self.clip is not None:
                    ratios = ratios.clip(*self.clip)
                return torch.from_numpy(np.hstack(_weigh(ratios, log, self.discount, resamples)))[None]

            rows = share_policies(len(policies), weigh, singly=True, description="weighting").numpy()
        values, replicates, by_step = rows[:, 0], rows[:, 1 : 1 + self.bootstraps], rows[:, 1 + self.bootstraps :]
        discounts = self.discount ** np.arange(by_step.shape[1])
        effective = np.array([_lower_quantile(sizes, discounts) for sizes in by_step])
        low = effective < _FEWEST_EFFECTIVE_EPISODES
        replicates[low] = np.nan
        warn_about(
            {problem.names[i]: f"{effective[i]:.2g}" for i in np.flatnonzero(low)},
            f"the log hardly covers {{}}: fewer than {_FEWEST_EFFECTIVE_EPISODES} effective episodes at steps that "
            "matter; log more of these policies, or rely on another estimator",
        )
        diagnostics |= {"effective_sample_size": effective, "effective_by_step": by_step}
        return values, replicates, diagnostics

    def _fit(self, problem: Problem, diagnostics: dict[str, Any]) -> np.ndarray:
        """Return log-probabilities (N,) of the logged actions under a fitted behaviour; add to the diagnostics."""
        log, request = problem.log, problem.request
        behaviour = BehaviourPolicy(
            log,
            hidden=self.hidden,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            seed=request.seed,
        )
        diagnostics["curve"] = learn(
            behaviour,
            self.updates,
            description="behaviour",
            checkpoint=request.checkpoint,
            identity=lambda: (
                [self.updates, self.batch_size, self.hidden, self.learning_rate],
                request.seed,
                *log.identity(),
            ),
        )
        log_probs = behaviour.log_probs().numpy()
        diagnostics["held_out_log_prob"] = float(log_probs[behaviour.held_out].mean())
        return log_probs

    def _log_probs(self, policy: Policy, log: Log, layout: Layout, edge: float) -> np.ndarray:
        """Return log-probabilities (N,) float64 of the logged actions under a policy.

        If all logged actions lie within ±1, they are clipped to ±`edge`.
        """
        actions, within = log.actions.cpu(), False
        if layout.kind != "discrete":
            actions = torch.from_numpy(log.transitions.actions)
            within = bool((actions.abs() <= 1).all())
            if within:
                actions = actions.clamp(-edge, edge)
        log_probs = np.empty(log.count)
        deterministic = []  # actions of a deterministic policy
        batch_size = current().batch_size
        for first in range(0, log.count, batch_size):
            rows = slice(first, min(first + batch_size, log.count))
            states, source = log.raw_states[rows], log.source[rows]
            output = policy.output(states, source)
            if output.kind == "action":
                deterministic.append(output.mean)
            elif output.kind == "discrete":
                log_probs[rows] = (output.mean.double() * actions[rows]).sum(1).log()
            else:
                log_probs[rows] = policy.log_prob(states, actions[rows], source)
        if deterministic:
            log_probs[:] = self._noisy_log_probs(torch.cat(deterministic), actions, within)
        # A normal of standard deviation 0 has no density: NaN.
        return np.where(np.isnan(log_probs), -np.inf, log_probs)

    def _noisy_log_probs(self, means: Tensor, actions: Tensor, within: bool) -> Tensor:
        """Return log-densities (N,) float64 of actions under noise around a deterministic policy's actions.

        Args:
            means: (N, dim_a) the policy's actions.
            actions: (N, dim_a) logged actions.
            within: Whether all logged actions lie within ±1.
        """
        means, actions = means.double(), actions.double()
        log_jacobian: Tensor | float = 0.0
        if within and (means.abs() <= 1).all():
            means, actions = (x.clamp(-EDGE, EDGE) for x in (means, actions))
            log_jacobian = -torch.log1p(-actions.square()).sum(1)
            means, actions = means.atanh(), actions.atanh()
        normal = -0.5 * ((actions - means) / self.noise).square() - math.log(self.noise) - 0.5 * math.log(2 * math.pi)
        return normal.sum(1) + log_jacobian


def _lower_quantile(sizes: np.ndarray, weights: np.ndarray) -> float:
    """Return the smallest size, without the smallest ones that hold a negligible share of the weight."""
    order = sizes.argsort()
    share = weights[order].cumsum() / weights.sum()
    return sizes[order[np.searchsorted(share, _NEGLIGIBLE, side="right")]]


def _weigh(
    log_ratios: np.ndarray, log: Log, discount: float, resamples: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the value, bootstrap values (R,) and effective episodes at every step (T,) of one policy.

    Args:
        log_ratios: (N,) log-ratios of the policy's density to the behaviour's.
        log: The log.
        discount: Discount factor γ.
        resamples: (R, E) how often each bootstrap sample holds each episode.
    """
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
            # No logged episode is possible under the policy: use the log's mean, with an effective size of 0.
            weights = present.astype(float)
        value += discount**t * float(weights @ rewards / weights.sum())
        sums = resamples @ weights
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates += discount**t * np.where(sums > 0, resamples @ (weights * rewards) / sums, 0.0)
    return value, replicates, effective
