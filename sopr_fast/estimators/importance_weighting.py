"""Per-decision, self-normalised importance weighting."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Normal

from ..inputs.logs import Transitions
from ..inputs.policies import Policy
from ..runtime.checks import integer, interval, number, option, optional, widths
from ..runtime.options import current
from ..runtime.progress import each
from .doubly_robust import replicated
from .learning import Batches, Learner, held_out_rows, learn
from .log import Log
from .networks import StackedMLP
from .policy_actions import PolicyActions
from .reward_estimator import Evaluated, RewardEstimator

EDGE = 1 - 1e-4  # actions beyond ±EDGE are clipped, so that their inverse tanh stays small
_FEWEST_EFFECTIVE_EPISODES = 5
_NEGLIGIBLE = 0.1  # share of the discounted weight of steps
_COMPONENTS = 5  # normals in the mixture of the behaviour
_BATCH, _LEARNING_RATE = 256, 1e-3  # of the behaviour's fit


@dataclass(frozen=True)
class ImportanceWeighting(RewardEstimator):
    """Per-decision importance weighting (Precup et al., 2000), self-normalised over episodes at every step.

    The log-probabilities of the behaviour are those in the log, if it has any. Otherwise a mixture of five normals
    behind tanh is fitted to the log (probabilities for discrete actions). A deterministic policy gets normal noise with
    standard deviation `noise`: before tanh if all its actions and all logged ones lie within ±1 (as in policy_eval),
    else around its action. For noise and for a fitted behaviour, actions are clipped to ±(1 - 1e-4).

    The value is the discounted return over the length of the longest episode. An episode that ended at a terminal
    continues with reward 0 and its last weight. One that was cut drops out where it ends, because what followed is
    unknown. Standard errors and replicates rest on what each episode adds to the value, to first order.

    Attributes:
        clip: Bounds (low, high) of the log-ratio of every step, or None; policy_eval's are (-6, 2).
        noise: Standard deviation of the noise of deterministic policies, before tanh or in units of actions.
        updates: Gradient steps of the behaviour's fit.
        hidden: Widths of the hidden layers of the fit.

    Diagnostics:
        effective_sample_size: (P,) effective number of episodes at the worst step, but for steps that hold a tenth of
            the discounted weight. At each step it is the smaller of (Σ w)² / Σ w² and Σ w, since weights of a policy
            that the log covers have mean 1.
        curve: See `FQE`; of the behaviour's fit, if there was one.
        held_out_log_prob: Mean log-probability of held-out actions under the fit, if there was one.

    Warns:
        UncertainEstimateWarning: A policy has an `effective_sample_size` below 5; its standard error is NaN.
    """

    clip: tuple[float, float] | None = option(None, optional(interval))
    noise: float = option(0.1, number(above=0))
    updates: int = option(5000, integer(1))
    hidden: tuple[int, ...] = option((256, 256), widths)

    def _evaluate(self, actions: PolicyActions, checkpoint: str | os.PathLike | None) -> Evaluated:
        log, policies = actions.log, actions.policies
        diagnostics: dict[str, Any] = {}
        if log.transitions.log_probs is not None:
            behaviour = log.transitions.log_probs.astype(np.float64)
        else:
            fitted, fit = _Behaviour(log, self.hidden, actions.seed), (self.updates, self.hidden, actions.seed)
            curve = learn(fitted, self.updates, "behaviour", checkpoint, lambda: (*fit, *log.identity()))
            behaviour = fitted.log_probs()
            diagnostics = {"curve": curve, "held_out_log_prob": float(behaviour[fitted.held_out].mean())}

        rows = []
        for policy in each(policies, "weighting", "policy"):
            ratios = self._log_probs(policy, log) - behaviour
            if self.clip is not None:
                ratios = ratios.clip(*self.clip)
            rows.append(_weigh(ratios, log.transitions, self.discount))
        effective, values, *columns = np.array(rows).T
        replicates = np.stack(columns, 1)
        low = effective < _FEWEST_EFFECTIVE_EPISODES
        replicates[low] = np.nan
        log.doubt(
            f"the log hardly covers {{}}: fewer than {_FEWEST_EFFECTIVE_EPISODES} effective episodes at steps that "
            "matter; log more of these policies, or rely on another estimator",
            {policies[i].name: f"{effective[i]:.2g}" for i in np.flatnonzero(low)},
        )
        return values, replicates, {"effective_sample_size": effective, **diagnostics}

    def _log_probs(self, policy: Policy, log: Log) -> np.ndarray:
        """Return log-probabilities (N,) float64 of the logged actions under a policy."""
        actions = log.actions if log.discrete else torch.from_numpy(log.transitions.actions)
        parts = []
        for rows in torch.arange(log.count, device="cpu").split(current().batch_size):
            output = policy.output(log.raw_states[rows], log.source[rows])
            if output.kind == "action":
                parts.append(output.mean)
            elif output.kind == "discrete":
                parts.append((output.mean.double() * actions[rows]).sum(1).log())
            else:
                parts.append(output.log_prob(actions[rows]).double())
        log_probs = torch.cat(parts)
        if output.kind == "action":
            means, actions = log_probs.double(), actions.double()
            log_jacobian: Tensor | float = 0.0
            if (actions.abs() <= 1).all() and (means.abs() <= 1).all():
                (means, _), (actions, log_jacobian) = _before_tanh(means), _before_tanh(actions)
            log_probs = Normal(means, self.noise, validate_args=False).log_prob(actions).sum(1) + log_jacobian
        return log_probs.nan_to_num(-torch.inf, torch.inf, -torch.inf).numpy()  # a normal of deviation 0 has no density


def _weigh(log_ratios: np.ndarray, transitions: Transitions, discount: float) -> np.ndarray:
    """Return effective sample size, value and replicates (R,) of the value of one policy.

    `log_ratios` (N,) are of the policy's density to the behaviour's.
    """
    episodes = transitions.episodes
    first, length = episodes[:-1], np.diff(episodes)
    ended = transitions.terminals[episodes[1:] - 1]
    horizon = int(length.max())
    cumulative, added = np.zeros((2, len(length)))
    value, effective = 0.0, np.zeros(horizon)
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
            effective[t] = min(total**2 / (weights**2).sum(), math.exp(min(top + math.log(total), 700.0)))
        else:
            # No logged episode is possible under the policy: use the log's mean, with an effective size of 0.
            weights = present.astype(float)
        weights /= weights.mean()
        mean = float(weights @ rewards) / len(weights)
        value += discount**t * mean
        added += discount**t * weights * (rewards - mean)
    order = effective.argsort()
    share = (discount ** np.arange(horizon))[order].cumsum()
    worst = order[np.searchsorted(share / share[-1], _NEGLIGIBLE, side="right")]
    return np.append(effective[worst], replicated(value, added))


def _before_tanh(actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse tanh of actions (B, dim_a), and the logarithm (B,) of its derivative."""
    actions = actions.clamp(-EDGE, EDGE)
    return actions.atanh(), -torch.log1p(-actions.square()).sum(1)


class _Behaviour(Learner):
    """Network of log b(a | s), the density of logged actions, fitted by maximum likelihood.

    For continuous actions it is a mixture of normals, behind tanh if all logged actions lie within ±1; for discrete
    actions it gives probabilities. A share of the episodes is held out.
    """

    def __init__(self, log: Log, hidden: Sequence[int], seed: int):
        self.log = log
        self.squash = not log.discrete and bool((np.abs(log.transitions.actions) <= 1).all())
        self.actions = torch.from_numpy(log.transitions.actions) if self.squash else log.actions
        width = log.action_dim if log.discrete else _COMPONENTS * (2 * log.action_dim + 1)
        sizes = [log.state_dim, *hidden, width]
        self.network = StackedMLP(sizes, rate=_LEARNING_RATE, seed=seed)
        self.networks = {"behaviour": self.network}
        self.held_out = held_out_rows(log, seed)
        rows = np.delete(np.arange(log.count), self.held_out)
        self.batches = Batches([rows], _BATCH, seed)

    def step(self, update: int) -> Tensor:
        """Update the network once and return its loss (1,)."""
        loss = -self._log_prob(self.batches(update)[0]).mean()
        self.network.adam.step(torch.autograd.grad(loss, [self.network.parameters]), most=10.0)
        return loss.detach()[None]

    def _log_prob(self, rows: Tensor) -> Tensor:
        """Return log-densities (B,) of the actions logged in rows (B,), in the log's units."""
        log, actions = self.log, self.actions[rows]
        out = self.network(log.states(rows))[0]
        if log.discrete:
            return (out.log_softmax(1) * actions).sum(1)
        log_jacobian: Tensor | float = -float(np.log(log.action_scale).sum())  # of the change of units
        if self.squash:
            actions, log_jacobian = _before_tanh(actions)
        weight, mean, log_std = out.split([_COMPONENTS, *2 * [_COMPONENTS * log.action_dim]], 1)
        mean, log_std = (x.unflatten(1, (_COMPONENTS, -1)) for x in (mean, log_std))
        normal = Normal(mean, log_std.clamp(-5, 2).exp(), validate_args=False).log_prob(actions[:, None]).sum(2)
        return torch.logsumexp(weight.log_softmax(1) + normal, 1) + log_jacobian

    @torch.no_grad()
    def log_probs(self) -> np.ndarray:
        """Return log-densities (N,) float64 of all logged actions."""
        rows = torch.arange(self.log.count, device="cpu")
        return torch.cat([self._log_prob(chunk).double() for chunk in rows.split(16384)]).numpy()
