"""An ensemble of probabilistic models of the environment."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..runtime.adam import Adam
from .behaviour import held_out_rows
from .learning import Batches, Learner
from .log import Log
from .networks import StackedMLP

_TOLERANCE = 0.05  # how far noise may leave the range of a column, in standard deviations


class Dynamics(Learner):
    """M models of next state, reward and termination.

    Each model maps a normalised state and action to normal distributions of the scaled change of state and of the
    standardised reward, and to the logit of termination. Models do not learn the states after terminals. Each learns
    from a bootstrap sample of episodes.

    Args:
        log: The log.
        members: M.
        hidden: Widths of the hidden layers.
        learning_rate: Learning rate of Adam.
        batch_size: Transitions per step and model.
        seed: Seed of initial weights, bootstrap, held-out episodes and mini-batches.
    """

    def __init__(
        self, log: Log, *, members: int, hidden: Sequence[int], learning_rate: float, batch_size: int, seed: int
    ):
        self.log, self.members, self.width = log, members, log.state_dim + 1
        transitions = log.transitions
        self.reward_mean = float(transitions.rewards.mean(dtype=np.float64))
        least = 1e-6 * float(np.abs(transitions.rewards).max())
        self.reward_scale = max(float(transitions.rewards.std(dtype=np.float64)), least) or 1.0
        self.reward_low, self.reward_high = float(transitions.rewards.min()), float(transitions.rewards.max())
        self.terminates = bool(transitions.terminals.any())
        self.change_scale = _change_scale(log)
        self.low, self.high = _range(log)
        self.network = StackedMLP(
            [log.state_dim + log.action_dim, *hidden, 2 * self.width + 1], draws=members, seed=seed, device=log.device
        )
        self.trained = {str(i): parameter for i, parameter in enumerate(self.network.parameters)}
        self.optimizers = {"adam": Adam(self.network.parameters, learning_rate)}
        self.held_out = held_out_rows(log, seed)
        usable = np.ones(log.count, bool)
        usable[self.held_out] = False
        self.batches = Batches(log.pools(usable, members, seed), batch_size, seed, log.device)

    def step(self, update: int) -> Tensor:
        """Update all models once and return their losses (M,)."""
        loss = self._loss(self.batches(update))
        self.optimizers["adam"].zero_grad()
        loss.sum().backward()
        self.optimizers["adam"].step()
        return loss.detach()

    def predict(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the models' distributions.

        Args:
            states: (M, B, dim_s) normalised.
            actions: (M, B, dim_a) as networks read them.

        Returns:
            Mean (M, B, dim_s + 1) and log standard deviation of the scaled change of state and standardised reward, and
            the logit (M, B) of termination.
        """
        out = self.network(torch.cat([states, actions], -1))
        mean, log_std = out[..., : self.width], out[..., self.width : -1]
        # Soft bounds: too narrow a normal makes the likelihood explode.
        log_std = 0.5 - functional.softplus(0.5 - log_std)
        log_std = -5 + functional.softplus(log_std + 5)
        return mean, log_std, out[..., -1]

    def step_forward(self, states: Tensor, actions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sample one step; states that leave the log's range are moved back to its edge.

        Rewards are expected ones: clipping samples to the log's range would move the mean of a skewed reward.

        Args:
            states: (M, B, dim_s) normalised.
            actions: (M, B, dim_a) as networks read them.
            noise: (M, B, dim_s) standard normal.

        Returns:
            Next states (M, B, dim_s), expected rewards (M, B), probabilities of termination (M, B), and whether each
            state clearly left the log's range (M, B).
        """
        mean, log_std, logit = self.predict(states, actions)
        change = mean[..., :-1] + log_std[..., :-1].exp() * noise
        following = states + change * self.change_scale[:-1]
        guarded = torch.minimum(torch.maximum(following, self.low), self.high)
        rewards = (mean[..., -1] * self.reward_scale + self.reward_mean).clamp(self.reward_low, self.reward_high)
        ends = logit.sigmoid() if self.terminates else torch.zeros_like(logit)
        return guarded, rewards, ends, ((guarded - following).abs() > _TOLERANCE).any(-1)

    @torch.no_grad()
    def held_out_errors(self) -> dict[str, list[float]]:
        """Return the errors of each model on held-out rows.

        Returns:
            "state_error", "reward_error": Mean squared errors as a share of the log's mean squared change of state and
            of its rewards' variance. "negative_log_likelihood": Mean per row.
        """
        rows = torch.from_numpy(self.held_out[:: len(self.held_out) // 16384 + 1]).to(self.log.device)
        rows = rows.expand(self.members, -1)
        states, actions, target, learned = self._targets(rows)
        error = (learned * (target - self.predict(states, actions)[0]).square()).sum(1) / learned.sum(1).clamp(min=1)
        return {
            "state_error": error[:, :-1].mean(1).tolist(),
            "reward_error": error[:, -1].tolist(),
            "negative_log_likelihood": self._loss(rows).tolist(),
        }

    def _targets(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return states, actions, scaled changes and rewards (M, B, dim_s + 1), and a 0-1 mask of those learned."""
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


def _change_scale(log: Log) -> Tensor:
    """Return the root mean square (dim_s + 1,) of normalised changes of state, and 1 for the reward."""
    transitions = log.transitions
    continues = ~transitions.terminals
    change = (transitions.next_states - transitions.states)[continues] / log.state_scale
    mean_square = np.square(change).sum(0) / max(1, np.count_nonzero(continues))
    return torch.from_numpy(np.append(np.sqrt(mean_square).clip(1e-6), 1.0)).float().to(log.device)


def _range(log: Log) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest normalised logged states, (dim_s,) each."""
    rows = torch.arange(log.count, device=log.device)
    ranges = [(s.amin(0), s.amax(0)) for s in (log.states(chunk) for chunk in rows.split(1 << 18))]
    return torch.stack([low for low, _ in ranges]).amin(0), torch.stack([high for _, high in ranges]).amax(0)
