"""Critics fitted by temporal differences: one for each policy, or one of the logged behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..runtime.progress import progress_bar
from ..runtime.warn import warn
from .estimates import UncertainEstimateWarning
from .learning import Batches, Learner, mean_of_known
from .log import Log, PolicyActions, Units
from .networks import ActionValue

_CHUNK = 1 << 16  # (state, action) rows evaluated at a time


@dataclass(frozen=True)
class ValueScale:
    """Values are learned as (value - mean) / scale, bounded by what rewards allow.

    Discounted returns to go of the log give mean and scale, so networks and errors are of order 1. The shift holds
    for terminals too, whose next value is 0, not the mean.
    """

    mean: float
    scale: float
    low: float
    high: float

    @classmethod
    def of(cls, log: Log, discount: float) -> ValueScale:
        transitions = log.transitions
        rewards = transitions.rewards.astype(np.float64)
        forever = rewards.mean() / (1 - discount)
        to_go = returns_to_go(rewards, transitions.terminals, transitions.episodes, discount, forever)
        scale = max(float(to_go.std()), float(rewards.std()), 1e-6 * abs(forever)) or 1e-6
        ends = [0.0] if transitions.terminals.any() else []
        low, high = rewards.min(), rewards.max()
        possible = (
            [low / (1 - discount), high / (1 - discount)] + [low + end for end in ends] + [high + end for end in ends]
        )
        return cls(float(to_go.mean()), scale, min(possible), max(possible))

    def shrink(self, values):
        return (values - self.mean) / self.scale

    def restore(self, values):
        return values * self.scale + self.mean


def returns_to_go(
    rewards: np.ndarray, terminals: np.ndarray, episodes: np.ndarray, discount: float, beyond: float
) -> np.ndarray:
    """(N,) float64: discounted return from each row on; after a cut episode comes `beyond`, after a terminal 0."""
    result = np.empty(len(rewards))
    first, last = episodes[:-1], episodes[1:] - 1
    following = np.where(terminals[last], 0.0, beyond)
    for back in range(int((last - first).max()) + 1):
        alive = last - back >= first
        rows = last[alive] - back
        following[alive] = rewards[rows] + discount * following[alive]
        result[rows] = following[alive]
    return result


def target_rate(chosen: float | None, updates: int, discount: float) -> float:
    """What is chosen, or what leaves e^-5 of the way to the fixed point, but from 0.005 to 0.1: faster targets swing.

    Where values follow their target at once, each update takes them `rate` (1 - γ) of what is left of the way.
    """
    return chosen or min(max(5 / (updates * (1 - discount)), 0.005), 0.1)


def lag(updates: int, rate: float, discount: float) -> float:
    """The share of the way to their fixed point that critics have left at the end, at least where no episode ends.

    Warns:
        UncertainEstimateWarning: it is over 0.1.
    """
    left = math.exp(-updates * rate * (1 - discount))
    if left > 0.1:
        text = f"{left:.0%} of the way to the values is left after {updates} updates, unless episodes are short"
        warn(f"{text}: take more, or a larger target_rate", UncertainEstimateWarning)
    return left


class CriticLearner(Learner):
    """Regression of C = members * P critics on r + γ (1 - terminal) Q_target(s', a').

    Args:
        next_actions: (M, B) rows of transitions and the update → a' (M, P, B, dim_a).
        known: (M, B) rows → (M, P, B) those that each policy's critic learns from, or None for all.
        copies: P.
        target_rate: share of the way that the target network goes toward the critics at each update.
    """

    def __init__(
        self,
        log: Log,
        batches: Batches,
        next_actions: Callable[[Tensor, int], Tensor],
        known: Callable[[Tensor], Tensor | None] = lambda rows: None,
        *,
        copies: int,
        discount: float,
        hidden: Sequence[int],
        learning_rate: float,
        target_rate: float,
        seed: int,
    ):
        self.log, self.batches, self.next_actions, self.known = log, batches, next_actions, known
        self.copies, self.members = copies, len(batches.pools)
        self.discount, self.target_rate = discount, target_rate
        self.scale = ValueScale.of(log, discount)
        self.critic = ActionValue(
            log.state_dim,
            log.action_dim,
            log.discrete,
            hidden,
            draws=self.members,
            copies=copies,
            seed=seed,
            device=log.device,
        )
        self.target = self.critic.frozen_copy()
        self.trained = {f"critic.{i}": p for i, p in enumerate(self.critic.parameters)}
        self.trained |= {f"target.{i}": p for i, p in enumerate(self.target.parameters)}
        self.optimizers = {"adam": torch.optim.Adam(self.critic.parameters, lr=learning_rate, fused=True)}

    def step(self, update: int) -> Tensor:
        log, scale = self.log, self.scale
        rows = self.batches(update)  # (M, B)
        with torch.no_grad():
            actions = self.next_actions(rows, update)  # (M, P, B, dim_a)
            following = self.target(self._for_all(log.states(log.next[rows])), actions.flatten(0, 1))
            alive = self.discount * (1 - log.terminals[rows])
            wanted = log.rewards[rows] - scale.mean * (1 - alive)
            wanted = (
                self._for_all((wanted / scale.scale)[..., None])[..., 0]
                + self._for_all(alive[..., None])[..., 0] * following
            )
            wanted.clamp_(scale.shrink(scale.low), scale.shrink(scale.high))
        values = self.critic(self._for_all(log.states(rows)), self._for_all(log.actions[rows]))
        known = self.known(rows)
        loss = mean_of_known((values - wanted).square(), None if known is None else known.flatten(0, 1))
        self.optimizers["adam"].zero_grad()
        loss.sum().backward()
        self.optimizers["adam"].step()
        self.target.network.move_toward(self.critic.network, self.target_rate)
        return loss.detach().view(self.members, self.copies).mean(0)

    def _for_all(self, x: Tensor) -> Tensor:
        """(M, B, d) → (M * P, B, d), the same for the P critics of a member."""
        return x[:, None].expand(-1, self.copies, -1, -1).flatten(0, 1)


class Critic:
    """Learned action values (of the target networks, which average the last updates), in units of return."""

    def __init__(self, value: ActionValue, scale: ValueScale, units: Units):
        self.value, self.scale, self.units = value, scale, units

    @torch.no_grad()
    def __call__(self, states, actions) -> np.ndarray:
        """Values (C, N) of the C critics at states (N, dim_s) with actions (N, dim_a), one-hot or probabilities if
        discrete, as arrays or tensors in the log's units.

        Raises:
            ValueError: states or actions are not of these shapes.
        """
        units, device = self.units, self.units.mean.device
        states, actions = (torch.as_tensor(x, dtype=torch.float32, device=device) for x in (states, actions))
        for name, given, width in (("states", states, units.state_dim), ("actions", actions, units.action_dim)):
            if given.shape != (len(states), width):
                raise ValueError(f"{name} have shape {tuple(given.shape)}, expected ({len(states)}, {width})")
        if not units.discrete:
            actions = actions / torch.from_numpy(units.action_scale).to(device)
        size, found = max(64, _CHUNK // self.value.network.count), []
        for s, a in zip(states.split(size), actions.split(size), strict=True):
            found.append(self.value(units.normalise(s), a).double().cpu())
        return self.scale.restore(torch.cat(found, 1)).numpy()

    def mean_values(self, actions: PolicyActions, rows: Tensor, *, progress: bool = False) -> np.ndarray:
        """(P, M) float64: mean over rows of the table of each policy's action values by its own M critics."""
        count = self.value.network.count
        members = count // len(actions.policies)

        def ask(states: Tensor, acted: Tensor) -> Tensor:
            return self.value(states, acted.repeat(members, 1, 1))

        return self._mean_values(actions, rows, ask, count, progress).T.numpy()

    def shared_mean_values(self, actions: PolicyActions, rows: Tensor, *, progress: bool = False) -> np.ndarray:
        """(P, C) float64: the same by C critics that know of no policy."""
        policies = len(actions.policies)

        def ask(states: Tensor, acted: Tensor) -> Tensor:
            states = states.expand(policies, -1, -1).flatten(0, 1)
            return self.value(states, acted.flatten(0, 1)).unflatten(1, (policies, -1)).flatten(0, 1)

        return self._mean_values(actions, rows, ask, policies * self.value.network.count, progress).T.numpy()

    @torch.no_grad()
    def _mean_values(
        self, actions: PolicyActions, rows: Tensor, ask: Callable[[Tensor, Tensor], Tensor], width: int, progress: bool
    ) -> Tensor:  # (M, P)
        """`ask` evaluates `width` (state, action) rows a state."""
        total: Tensor | float = 0.0
        with progress_bar(len(rows), "evaluating", "state", show=progress) as bar:
            for chunk in rows.split(max(64, _CHUNK // width)):
                states = actions.log.states(chunk)
                for draw in range(actions.draws):
                    total = total + ask(states, actions(chunk, draw)).double().sum(1).cpu()
                bar.update(len(chunk))
        return self.scale.restore(total / (len(rows) * actions.draws)).view(-1, len(actions.policies))
