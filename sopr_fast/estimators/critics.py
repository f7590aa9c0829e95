"""Critics fitted by temporal differences: one per policy, or one of the logged behaviour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..inputs.logs import Transitions
from ..ranking.estimates import UncertainEstimateWarning
from ..runtime.adam import Adam
from ..runtime.distributed import share_policies
from ..runtime.progress import progress_bar
from ..runtime.warn import warn
from .learning import Batches, Learner, masked_mean
from .log import Log, Units
from .networks import ActionValue
from .policy_actions import PolicyActions

_CHUNK = 1 << 16  # (state, action) rows evaluated at once
_LARGEST_LAG = 0.1

_Number = TypeVar("_Number", float, Tensor, np.ndarray)


@dataclass(frozen=True)
class ValueScale:
    """Affine scale on which critics learn values, and the range that rewards allow.

    Critics learn (value - mean) / scale. Mean and scale are those of discounted returns-to-go in the log, so that
    outputs and errors are of order 1.

    Attributes:
        mean: Mean value.
        scale: Standard deviation of values.
        low: Smallest value that rewards allow.
        high: Largest value that rewards allow.
    """

    mean: float
    scale: float
    low: float
    high: float

    @classmethod
    def of(cls, log: Log, discount: float) -> ValueScale:
        """Return the scale of a log's values."""
        transitions = log.transitions
        rewards = transitions.rewards.astype(np.float64)
        rate = decay(transitions, discount)
        endless = rewards.mean() / rate
        to_go = returns_to_go(rewards, transitions.terminals, transitions.episodes, discount, endless)
        scale = max(float(to_go.std()), float(rewards.std()), 1e-6 * abs(endless)) or 1e-6
        extremes = [float(rewards.min()), float(rewards.max())]
        bounds = [reward / rate for reward in extremes]
        if transitions.terminals.any():
            bounds += extremes  # an episode may have one step
        return cls(float(to_go.mean()), scale, min(bounds), max(bounds))

    def normalise(self, values: _Number) -> _Number:
        """Return values in the critics' units."""
        return (values - self.mean) / self.scale

    def restore(self, values: _Number) -> _Number:
        """Return values in units of return."""
        return values * self.scale + self.mean


def decay(transitions: Transitions, discount: float) -> float:
    """Return 1 - γ, over which the weights of endless rewards sum up to 1; for γ = 1, over the longest logged episode.

    Raises:
        ValueError: γ is 1, and the episodes need not end.
    """
    if discount < 1:
        return 1 - discount
    if not np.isfinite(transitions.longest):
        ends = transitions.terminals[transitions.episodes[1:] - 1]
        raise ValueError(
            f"discount=1 needs episodes that end in terminal states, but {np.count_nonzero(~ends):,} of {len(ends):,} "
            "are cut; pass discount=0.99, or mark the ends as 'terminals'"
        )
    return 1 / transitions.longest


def returns_to_go(
    rewards: np.ndarray, terminals: np.ndarray, episodes: np.ndarray, discount: float, beyond: float
) -> np.ndarray:
    """Return the discounted sum of rewards from each row to the end of its episode, and what follows.

    Args:
        rewards: (N,) rewards.
        terminals: (N,) bool.
        episodes: (E + 1,) first rows of the episodes, and N.
        discount: Discount factor γ.
        beyond: Value after an episode that a timeout cut; after a terminal it is 0.

    Returns:
        (N,) float64.
    """
    result = np.empty(len(rewards))
    first, last = episodes[:-1], episodes[1:] - 1
    following = np.where(terminals[last], 0.0, beyond)
    for steps_back in range(int((last - first).max()) + 1):
        alive = last - steps_back >= first
        rows = last[alive] - steps_back
        following[alive] = rewards[rows] + discount * following[alive]
        result[rows] = following[alive]
    return result


def target_rate(chosen: float | None, updates: int, decay: float) -> float:
    """Return the weight of the critic in each update of its target network.

    If the critic follows its target at once, each update closes `rate` (1 - γ) of the distance to the fixed point.
    The default leaves e^-5 of it, within bounds: faster targets make values oscillate.

    Args:
        chosen: The option's value, or None for the default.
        updates: Number of updates.
        decay: 1 - γ, see `decay`.
    """
    return chosen or min(max(5 / (updates * decay), 0.005), 0.1)


def lag(transitions: Transitions, updates: int, rate: float, discount: float) -> float:
    """Return the share of the way to their fixed point that critics have left after training.

    It is smaller where episodes end early, and 0 where each has one step, after which no value follows.

    Args:
        transitions: The log.
        updates: Number of updates.
        rate: See `target_rate`.
        discount: Discount factor γ.

    Warns:
        UncertainEstimateWarning: The share exceeds 0.1.
    """
    following = transitions.longest - 1  # steps whose values follow
    weight = min(following, 1 / (1 - discount) if discount < 1 else math.inf)
    remaining = math.exp(-updates * rate / weight) if weight else 0.0
    if remaining > _LARGEST_LAG:
        warn(
            f"critics have {remaining:.0%} of the way to their values left after {updates} updates, unless episodes "
            "end early; raise updates or target_rate",
            UncertainEstimateWarning,
        )
    return remaining


class CriticLearner(Learner):
    """Regression of C = members * P critics on r + γ (1 - terminal) Q_target(s', a').

    Targets are clipped to the range that rewards allow.

    Args:
        log: The log.
        batches: Rows (M, B) of each update for M members.
        next_actions: Function of rows (M, B) and the update that returns next actions (M, P, B, dim_a).
        has_next_action: Function of rows (M, B) that returns (M, P, B) whether each policy's next action is known, or
            None if all are.
        copies: P.
        discount: Discount factor γ.
        hidden: Widths of the hidden layers.
        learning_rate: Learning rate of Adam.
        target_rate: Weight of the critics in each update of the target networks.
        seed: Seed of the initial weights.
    """

    def __init__(
        self,
        log: Log,
        batches: Batches,
        next_actions: Callable[[Tensor, int], Tensor],
        has_next_action: Callable[[Tensor], Tensor | None] = lambda rows: None,
        *,
        copies: int,
        discount: float,
        hidden: Sequence[int],
        learning_rate: float,
        target_rate: float,
        seed: int,
    ):
        self.log, self.batches = log, batches
        self.next_actions, self.has_next_action = next_actions, has_next_action
        self.copies, self.members = copies, len(batches.pools)
        self.discount, self.target_rate = discount, target_rate
        self.scale = ValueScale.of(log, discount)
        self.critic = ActionValue(log.units, hidden, draws=self.members, copies=copies, seed=seed)
        self.target = self.critic.frozen_copy()
        self.trained = {f"critic.{i}": p for i, p in enumerate(self.critic.parameters)}
        self.trained |= {f"target.{i}": p for i, p in enumerate(self.target.parameters)}
        self.optimizers = {"adam": Adam(self.critic.parameters, learning_rate)}

    def step(self, update: int) -> Tensor:
        """Update all critics once and return their losses (P,), averaged over members."""
        log = self.log
        rows = self.batches(update)  # (M, B)
        targets = self._targets(rows, update)
        values = self.critic(self._for_all(log.states(rows)), self._for_all(log.actions[rows]))
        mask = self.has_next_action(rows)
        loss = masked_mean((values - targets).square(), None if mask is None else mask.flatten(0, 1))
        self.optimizers["adam"].zero_grad()
        loss.sum().backward()
        self.optimizers["adam"].step()
        self.target.network.move_toward(self.critic.network, self.target_rate)
        return loss.detach().view(self.members, self.copies).mean(0)

    @torch.no_grad()
    def _targets(self, rows: Tensor, update: int) -> Tensor:  # (C, B)
        log, scale = self.log, self.scale
        actions = self.next_actions(rows, update)  # (M, P, B, dim_a)
        following = self.target(self._for_all(log.states(log.next[rows])), actions.flatten(0, 1))
        alive = self.discount * (1 - log.terminals[rows])
        # The value after a terminal is 0, which is not 0 in the critics' units.
        offset = (log.rewards[rows] - scale.mean * (1 - alive)) / scale.scale
        targets = self._for_all(offset[..., None])[..., 0] + self._for_all(alive[..., None])[..., 0] * following
        return targets.clamp_(scale.normalise(scale.low), scale.normalise(scale.high))

    def _for_all(self, x: Tensor) -> Tensor:
        """Repeat (M, B, d) for the P critics of each member: (M * P, B, d)."""
        return x[:, None].expand(-1, self.copies, -1, -1).flatten(0, 1)


class Critic:
    """Learned action values, in units of return.

    They are those of the target networks, which average the last updates.

    Args:
        value: C action-value functions.
        scale: Scale of their values.
        units: Units of the states and actions that they read.
    """

    def __init__(self, value: ActionValue, scale: ValueScale, units: Units):
        self.value, self.scale, self.units = value, scale, units

    @torch.no_grad()
    def __call__(self, states: Any, actions: Any) -> np.ndarray:
        """Return the values of actions.

        Args:
            states: (N, dim_s) array or tensor, in the log's units.
            actions: (N, dim_a) array or tensor, in the log's units; for discrete actions one-hot or probabilities.

        Returns:
            (C, N) float64 values by the C critics.

        Raises:
            ValueError: States or actions have another shape.
        """
        units, device = self.units, self.units.mean.device
        states, actions = (torch.as_tensor(x, dtype=torch.float32, device=device) for x in (states, actions))
        for name, table, width in (("states", states, units.state_dim), ("actions", actions, units.action_dim)):
            if table.shape != (len(states), width):
                raise ValueError(f"{name} have shape {tuple(table.shape)}, expected ({len(states)}, {width})")
        actions = units.normalise_actions(actions)
        size = max(64, _CHUNK // self.value.network.count)
        values = [
            self.value(units.normalise(s), a).double().cpu()
            for s, a in zip(states.split(size), actions.split(size), strict=True)
        ]
        return self.scale.restore(torch.cat(values, 1)).numpy()

    def mean_values(self, actions: PolicyActions, rows: Tensor) -> np.ndarray:
        """Return the mean value of each policy's actions by its own M critics.

        Args:
            actions: What P policies do in the states of the log.
            rows: (B,) rows of the log's table of states.

        Returns:
            (P, M) float64.
        """
        count = self.value.network.count
        members = count // len(actions.policies)

        def evaluate(states: Tensor, taken: Tensor) -> Tensor:
            return self.value(states, taken.repeat(members, 1, 1))

        return self._mean_values(actions, rows, evaluate, count)

    def shared_mean_values(self, actions: PolicyActions, rows: Tensor) -> np.ndarray:
        """Return the mean value of each policy's actions by all C critics, which the policies share.

        Processes share the policies.

        Args:
            actions: What P policies do in the states of the log.
            rows: (B,) rows of the log's table of states.

        Returns:
            (P, C) float64.
        """

        def mean_values(part: slice) -> Tensor:  # (p, C)
            own = actions.of(part)
            policies = len(own.policies)

            def evaluate(states: Tensor, taken: Tensor) -> Tensor:
                states = states.expand(policies, -1, -1).flatten(0, 1)
                return self.value(states, taken.flatten(0, 1)).unflatten(1, (policies, -1)).flatten(0, 1)

            return torch.from_numpy(
                self._mean_values(own, rows, evaluate, policies * self.value.network.count, show=False)
            )

        return share_policies(len(actions.policies), mean_values, description="evaluating").numpy()

    @torch.no_grad()
    def _mean_values(
        self,
        actions: PolicyActions,
        rows: Tensor,
        evaluate: Callable[[Tensor, Tensor], Tensor],
        width: int,
        show: bool = True,
    ) -> np.ndarray:  # (P, M)
        """Average over rows and draws; `evaluate` computes `width` values per state, member by member."""
        total: Tensor | float = 0.0
        with progress_bar(len(rows), "evaluating", "state", show=show) as bar:
            for chunk in rows.split(max(64, _CHUNK // width)):
                states = actions.log.states(chunk)
                for draw in range(actions.draws):
                    total = total + evaluate(states, actions(chunk, draw)).double().sum(1).cpu()
                bar.update(len(chunk))
        assert isinstance(total, Tensor)
        means = self.scale.restore(total / (len(rows) * actions.draws))
        return means.view(-1, len(actions.policies)).T.numpy()
