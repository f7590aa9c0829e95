"""The density of logged actions given states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..runtime.adam import Adam
from .learning import Batches, Learner
from .log import Log
from .networks import StackedMLP

_COMPONENTS = 5  # normals in the mixture
EDGE = 1 - 1e-4  # actions beyond ±EDGE are clipped, so that their inverse tanh stays small


class BehaviourPolicy(Learner):
    """Network of log b(a | s), fitted by maximum likelihood.

    For continuous actions it is a mixture of normals, behind tanh if all logged actions lie within ±1; for discrete
    actions it gives probabilities. A share of the episodes is held out.

    Args:
        log: The log.
        hidden: Widths of the hidden layers.
        learning_rate: Learning rate of Adam.
        batch_size: Rows per step.
        seed: Seed of initial weights, held-out episodes and mini-batches.
    """

    def __init__(self, log: Log, *, hidden: Sequence[int], learning_rate: float, batch_size: int, seed: int):
        self.log = log
        self.squash = not log.discrete and bool((np.abs(log.transitions.actions) <= 1).all())
        self.actions = torch.from_numpy(log.transitions.actions).to(log.device) if self.squash else log.actions
        width = log.action_dim if log.discrete else _COMPONENTS * (2 * log.action_dim + 1)
        self.network = StackedMLP([log.state_dim, *hidden, width], seed=seed, device=log.device)
        self.trained = {str(i): parameter for i, parameter in enumerate(self.network.parameters)}
        self.optimizers = {"adam": Adam(self.network.parameters, learning_rate)}
        self.held_out = held_out_rows(log, seed)
        usable = np.ones(log.count, bool)
        usable[self.held_out] = False
        self.batches = Batches([np.flatnonzero(usable)], batch_size, seed, log.device)

    def step(self, update: int) -> Tensor:
        """Update the network once and return its loss (1,)."""
        rows = self.batches(update)[0]
        loss = -self.log_prob(rows).mean()
        self.optimizers["adam"].zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters, 10.0)
        self.optimizers["adam"].step()
        return loss.detach()[None]

    def log_prob(self, rows: Tensor) -> Tensor:
        """Return log-densities (B,) of the actions logged in rows (B,), in the log's units."""
        log, out = self.log, self.network(self.log.states(rows))[0]
        if log.discrete:
            return (out.log_softmax(1) * self.actions[rows]).sum(1)
        actions = self.actions[rows]
        log_jacobian: Tensor | float  # of the change of units
        if self.squash:
            actions = actions.clamp(-EDGE, EDGE)
            log_jacobian = -torch.log1p(-actions.square()).sum(1)
            actions = actions.atanh()
        else:
            log_jacobian = -float(np.log(log.units.action_scale).sum())
        weight, mean, log_std = out.split([_COMPONENTS, *2 * [_COMPONENTS * log.action_dim]], 1)
        mean, log_std = (x.unflatten(1, (_COMPONENTS, -1)) for x in (mean, log_std))
        log_std = log_std.clamp(-5, 2)
        normal = -0.5 * ((actions[:, None] - mean) * (-log_std).exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(weight.log_softmax(1) + normal.sum(2), 1) + log_jacobian

    @torch.no_grad()
    def log_probs(self) -> Tensor:
        """Return log-densities (N,) float64 of all logged actions, on the CPU."""
        rows = torch.arange(self.log.count, device=self.log.device)
        return torch.cat([self.log_prob(chunk).double().cpu() for chunk in rows.split(16384)])


def held_out_rows(log: Log, seed: int, share: float = 0.05) -> np.ndarray:
    """Return rows that are held out of training: those of a share of the episodes, at least one.

    If these are more than twice that share of all rows, only the last of them are held out.

    Args:
        log: The log.
        seed: Seed of the choice of episodes.
        share: Share of the episodes.

    Raises:
        ValueError: The log has a single row.
    """
    if log.count == 1:
        raise ValueError("log: one row is too few, because some rows are held out of training; pass more rows")
    episodes = log.transitions.episodes
    count = len(episodes) - 1
    chosen = np.random.default_rng([seed, 3]).permutation(count)[: max(1, int(share * count))]
    rows = np.concatenate([np.arange(episodes[e], episodes[e + 1]) for e in np.sort(chosen)])
    return rows if len(rows) <= 2 * share * log.count else rows[-max(1, int(share * log.count)) :]
