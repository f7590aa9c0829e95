"""An ensemble of probabilistic models of the environment, trained once for a log."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .behaviour import held_out_rows
from .learning import Batches, Learner
from .log import Log
from .networks import StackedMLP

_TOLERANCE = 0.05  # of a standard deviation, that the noise of a column at the edge of its range may exceed it


class Dynamics(Learner):
    """M networks from normalised state and action to normals of the change of state and of the reward, and to the
    probability of termination; what state follows a terminal they do not learn. Members learn from bootstrap draws of
    episodes."""

    def __init__(
        self, log: Log, *, members: int, hidden: Sequence[int], learning_rate: float, batch_size: int, seed: int
    ):
        self.log, self.members, self.width = log, members, log.state_dim + 1
        transitions = log.transitions
        self.reward_mean = float(transitions.rewards.mean(dtype=np.float64))
        least = 1e-6 * float(np.abs(transitions.rewards).max())
        self.reward_scale = max(float(transitions.rewards.std(dtype=np.float64)), least) or 1.0
        self.terminates = bool(transitions.terminals.any())
        goes_on = ~transitions.terminals
        change = (transitions.next_states - transitions.states)[goes_on] / log.state_scale
        change = np.square(change).sum(0) / max(1, np.count_nonzero(goes_on))
        self.change_scale = torch.from_numpy(np.append(np.sqrt(change).clip(1e-6), 1.0)).float().to(log.device)
        logged = torch.arange(log.count, device=log.device)
        ranges = [(s.amin(0), s.amax(0)) for s in (log.states(rows) for rows in logged.split(1 << 18))]
        self.low, self.high = torch.stack([r[0] for r in ranges]).amin(0), torch.stack([r[1] for r in ranges]).amax(0)
        self.reward_low, self.reward_high = float(transitions.rewards.min()), float(transitions.rewards.max())
        self.network = StackedMLP(
            [log.state_dim + log.action_dim, *hidden, 2 * self.width + 1], draws=members, seed=seed, device=log.device
        )
        self.trained = {str(i): parameter for i, parameter in enumerate(self.network.parameters)}
        self.optimizers = {"adam": torch.optim.Adam(self.network.parameters, lr=learning_rate, fused=True)}
        self.held_out = held_out_rows(log, seed)
        kept = np.ones(log.count, bool)
        kept[self.held_out] = False
        self.batches = Batches(log.pools(kept, members, seed), batch_size, seed, log.device)

    def step(self, update: int) -> Tensor:
        loss = self._loss(self.batches(update))
        self.optimizers["adam"].zero_grad()
        loss.sum().backward()
        self.optimizers["adam"].step()
        return loss.detach()

    def predict(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised states and actions (M, B, ·) → mean and log standard deviation (M, B, dim_s + 1) of the scaled
        change of state and the standardised reward, and the logit of termination (M, B)."""
        out = self.network(torch.cat([states, actions], -1))
        mean, log_std = out[..., : self.width], out[..., self.width : -1]
        # Softly bounded: a normal too narrow for the data makes the likelihood explode.
        log_std = 0.5 - functional.softplus(0.5 - log_std)
        log_std = -5 + functional.softplus(log_std + 5)
        return mean, log_std, out[..., -1]

    def step_forward(self, states: Tensor, actions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Next normalised states and rewards, drawn with standard normal `noise` (M, B, dim_s + 1), probability of
        termination, and which states (M, B) clearly left the log's range; all are put back into it."""
        mean, log_std, logit = self.predict(states, actions)
        drawn = (mean + log_std.exp() * noise) * self.change_scale
        following = states + drawn[..., :-1]
        guarded = torch.minimum(torch.maximum(following, self.low), self.high)
        rewards = (drawn[..., -1] * self.reward_scale + self.reward_mean).clamp(self.reward_low, self.reward_high)
        ends = logit.sigmoid() if self.terminates else torch.zeros_like(logit)
        return guarded, rewards, ends, ((guarded - following).abs() > _TOLERANCE).any(-1)

    def _targets(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States, actions, scaled changes and rewards (M, B, dim_s + 1) and 1 where these are learned, else 0."""
        log = self.log
        states = log.states(rows)
        rewards = (log.rewards[rows] - self.reward_mean) / self.reward_scale
        change = torch.cat([log.states(log.next[rows]) - states, rewards[..., None]], -1)
        learned = torch.ones_like(change)
        learned[..., :-1] -= log.terminals[rows][..., None]
        return states, log.actions[rows], change / self.change_scale, learned

    def _loss(self, rows: Tensor) -> Tensor:  # (M,)
        states, actions, target, learned = self._targets(rows)
        mean, log_std, logit = self.predict(states, actions)
        nll = 0.5 * ((target - mean) * (-log_std).exp()).square() + log_std + 0.5 * math.log(2 * math.pi)
        nll = (nll * learned).sum(-1)
        if self.terminates:
            nll = nll + functional.binary_cross_entropy_with_logits(logit, self.log.terminals[rows], reduction="none")
        return nll.mean(1)

    @torch.no_grad()
    def held_out_errors(self) -> dict[str, list[float]]:
        """Of each member, on held-out rows: mean squared error of changes of state and of rewards, as a share of the
        log's mean squared change and of its rewards' variance, and negative log-likelihood a row."""
        rows = torch.from_numpy(self.held_out[:: len(self.held_out) // 16384 + 1]).to(self.log.device)
        rows = rows.expand(self.members, -1)
        states, actions, target, learned = self._targets(rows)
        error = (learned * (target - self.predict(states, actions)[0]).square()).sum(1) / learned.sum(1).clamp(min=1)
        return {
            "state_error": error[:, :-1].mean(1).tolist(),
            "reward_error": error[:, -1].tolist(),
            "negative_log_likelihood": self._loss(rows).tolist(),
        }
