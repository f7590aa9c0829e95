"""A density of the logged actions given states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .learning import Batches, Learner
from .log import Log
from .networks import StackedMLP

EDGE = 1 - 1e-4  # actions beyond are taken here, so that the inverse of tanh stays small


class BehaviourPolicy(Learner):
    """log b(a | s): a mixture of normals, behind tanh if all logged actions lie within ±1; of discrete actions,
    probabilities. Fitted by maximum likelihood to a share of the episodes."""

    def __init__(
        self, log: Log, *, hidden: Sequence[int], components: int, learning_rate: float, batch_size: int, seed: int
    ):
        self.log, self.components = log, components
        self.squash = not log.discrete and bool((np.abs(log.transitions.actions) <= 1).all())
        self.actions = torch.from_numpy(log.transitions.actions).to(log.device) if self.squash else log.actions
        width = log.action_dim if log.discrete else components * (2 * log.action_dim + 1)
        self.network = StackedMLP([log.state_dim, *hidden, width], seed=seed, device=log.device)
        self.trained = {str(i): parameter for i, parameter in enumerate(self.network.parameters)}
        self.optimizers = {"adam": torch.optim.Adam(self.network.parameters, lr=learning_rate, fused=True)}
        self.held_out = held_out_rows(log, seed)
        kept = np.ones(log.count, bool)
        kept[self.held_out] = False
        self.batches = Batches([np.flatnonzero(kept)], batch_size, seed, log.device)

    def step(self, update: int) -> Tensor:
        rows = self.batches(update)[0]
        loss = -self.log_prob(rows).mean()
        self.optimizers["adam"].zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters, 10.0)
        self.optimizers["adam"].step()
        return loss.detach()[None]

    def log_prob(self, rows: Tensor) -> Tensor:
        """(B,) of the logged actions, in the log's own units."""
        log, out = self.log, self.network(self.log.states(rows))[0]
        if log.discrete:
            return (out.log_softmax(1) * self.actions[rows]).sum(1)
        actions = self.actions[rows]
        if self.squash:
            actions = actions.clamp(-EDGE, EDGE)
            units = -torch.log1p(-actions.square()).sum(1)
            actions = actions.atanh()
        else:
            units = -float(np.log(log.units.action_scale).sum())
        weight, mean, log_std = out.split(
            [self.components, self.components * log.action_dim, self.components * log.action_dim], 1
        )
        mean, log_std = (x.unflatten(1, (self.components, -1)) for x in (mean, log_std))
        log_std = log_std.clamp(-5, 2)
        normal = -0.5 * ((actions[:, None] - mean) * (-log_std).exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(weight.log_softmax(1) + normal.sum(2), 1) + units

    @torch.no_grad()
    def log_probs(self) -> Tensor:
        """(N,) float64."""
        rows = torch.arange(self.log.count, device=self.log.device)
        return torch.cat([self.log_prob(chunk).double().cpu() for chunk in rows.split(16384)])


def held_out_rows(log: Log, seed: int, share: float = 0.05) -> np.ndarray:
    """Rows of a share of the episodes, at least one; if those hold over twice that share of the rows, their end.

    Raises:
        ValueError: there is but one row.
    """
    if log.count == 1:
        raise ValueError("transitions: one row is too few, since some are held out from training")
    episodes = log.transitions.episodes
    count = len(episodes) - 1
    chosen = np.random.default_rng([seed, 3]).permutation(count)[: max(1, int(share * count))]
    rows = np.concatenate([np.arange(episodes[e], episodes[e + 1]) for e in np.sort(chosen)])
    return rows if len(rows) <= 2 * share * log.count else rows[-max(1, int(share * log.count)) :]
