"""An ensemble of models of the environment."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .learning import Batches, Learner, held_out_rows
from .log import ROUNDING, Log
from .networks import StackedMLP

_BATCH = 256
_LEARNING_RATE = 2e-3
_WEIGHT_DECAY = 1e-4
_AVERAGED_EVERY = 10  # updates
_AVERAGED_SHARE = 1 / 8  # of the updates, over which weights are averaged
_END_HIDDEN = (128, 128)
_MOST_DEVIATIONS = 15.0  # of a state from the log's mean
_UNROLLED_SHARE, _UNROLLED_STEPS = 1 / 4, 5  # of the updates, the last ones; steps
_ROWS = 16384


class Dynamics(Learner):
    """M models of next state, reward and termination. They predict with averages of the weights that training changes.

    Each model maps a normalised state and action to the change of state, in units of its root mean square, and to two
    standardised rewards: if the episode goes on, and if it ends. A second network predicts from the next state whether
    the episode ends there. It learns from batches of which half are ends, and its logit is corrected for that.

    In the last quarter of the updates, half of each batch are runs of five steps, in which a model reads the states
    that it reached itself in place of the logged ones. So its errors grow more slowly in rollouts.

    If no next state of a terminal differs from the state itself, these next states are unknown. Then changes of
    state are learned from the other rows, and ends from the states that the models predict.
    """

    def __init__(self, log: Log, *, members: int, hidden: Sequence[int], updates: int, seed: int):
        self.members, self.seed = members, seed
        units = [_spread(rewards) for rewards in _by_end(log)]
        self._reward_units = torch.tensor(units, dtype=torch.float32, device="cpu")
        self.change_scale = _change_scale(log)
        self._divisor = torch.where(self.change_scale > 0, self.change_scale, torch.inf)
        self.held_out = held_out_rows(log, seed)
        sizes = [log.state_dim + log.action_dim, *hidden, log.state_dim + 2]
        end_sizes = [log.state_dim, *(min(a, b) for a, b in zip(hidden, _END_HIDDEN, strict=False)), 1]
        options: dict[str, Any] = {"draws": members, "seed": seed, "decay": _WEIGHT_DECAY}
        models, ends = (StackedMLP(each, rate=_LEARNING_RATE, **options) for each in (sizes, end_sizes))
        self.networks = {"models": models, "ends": ends}
        self._thresholds = torch.full((sizes[-1],), math.inf, dtype=torch.float32, device="cpu")
        self._thresholds[:-2] = 1.0
        self._prepare(log, updates, np.zeros(log.count, int))

    def going_on(self, log: Log, updates: int) -> Dynamics:
        """Return models that go on from these, in their units; half of each batch are rows that the log adds."""
        models = copy.copy(self)
        models.networks = copy.deepcopy(self.networks)
        models._prepare(log, updates, (np.arange(log.count) >= self.log.count).astype(int))
        return models

    def _prepare(self, log: Log, updates: int, parts: np.ndarray) -> None:
        """Prepare to learn from a log, whose rows are of parts (N,) from which batches hold equally many rows."""
        self.log, self.updates = log, updates
        self._models, self._end_models = self.networks.values()
        rewards, terminals, has_change = log.transitions.rewards, log.transitions.terminals, _has_change(log)
        self.reward_size = float(np.abs(rewards.astype(np.float64)).mean())
        ranges = [(own.min(), own.max()) if len(own) else (0, 0) for own in _by_end(log)]
        self._reward_ranges = torch.tensor(ranges, dtype=torch.float32, device="cpu")
        self.ends_are_seen = bool(has_change[terminals].any())
        self.end_share = float(terminals.mean())
        (centre, scale), ends = self._reward_units.T, log.terminals[:, None]
        weights = torch.cat([torch.from_numpy(has_change).float()[:, None], 1 - ends, ends], 1)
        # One table, so that a batch is gathered at once; weights are of changes, and of one of the rewards.
        scaled = (log.rewards[:, None] - centre) / scale
        self._rewards_and_weights = torch.cat([scaled, weights / (log.state_dim + 1)], 1)
        usable = np.ones(log.count, bool)
        usable[self.held_out] = False
        pools = [np.flatnonzero(usable & (parts == part)) for part in np.unique(parts)]
        self._parts = len(pools)
        self.batches = Batches(pools * self.members, _BATCH // len(pools), self.seed)
        starts = _starts(usable & has_change, log.next.numpy() == np.arange(1, log.count + 1))
        size = _BATCH // 2 // _UNROLLED_STEPS
        self._unrolls = Batches([starts] * self.members, size, self.seed + 2**33)
        self._unrolled_from = math.ceil((1 - _UNROLLED_SHARE) * updates) if len(starts) else updates
        kinds = [usable & terminals, usable & ~terminals]
        kinds = [kind if kind.any() else whole for kind, whole in zip(kinds, (terminals, ~terminals), strict=True)]
        self._learns_ends = all(kind.any() for kind in kinds)
        if self._learns_ends:
            pools = [np.flatnonzero(kind) for kind in kinds] * self.members
            self._end_batches = Batches(pools, _BATCH // 2, self.seed + 2**32)

    def step(self, update: int) -> Tensor:
        """Update all models once and return their losses (M,)."""
        log, rows = self.log, self.batches(update).view(self.members, -1)
        for network in self.networks.values():
            network.adam.rate = _LEARNING_RATE * min(1.0, 2 * (1 - update / self.updates))
        averages = (update + 1) % _AVERAGED_EVERY == 0 or update + 1 == self.updates
        average_rate = min(1.0, _AVERAGED_EVERY / (_AVERAGED_SHARE * self.updates)) if averages else 0.0
        if self._learns_ends:
            end_rows = self._end_batches(update).view(self.members, -1)
            self._end_models.train(self._reached(end_rows), log.terminals[end_rows, None], average_rate=average_rate)
        runs: dict[str, Any] = {}
        if update >= self._unrolled_from:
            parts, starts = rows.view(self.members, self._parts, -1), self._unrolls(update)
            half = parts[..., : parts.shape[2] // 2].flatten(1)  # half of the rows of each
            rows = torch.cat([half, *(starts + step for step in range(_UNROLLED_STEPS))], 1)
            runs = {"runs": starts.shape[1], "run_length": _UNROLLED_STEPS, "scale": self.change_scale}
        inputs, target, weight = self._read(rows)
        if runs:  # counts as much as the other half
            count = half.shape[1]
            weight[:, :count] *= rows.shape[1] / 2 / count
            weight[:, count:] *= rows.shape[1] / 2 / (rows.shape[1] - count)
        return self._models.train(
            inputs,
            target,
            weight=weight,
            thresholds=self._thresholds,  # Huber's loss of changes, half the squared error of rewards
            average_rate=average_rate,
            bound=_MOST_DEVIATIONS,
            **runs,
        )

    def step_forward(
        self, states: Tensor, actions: Tensor, chosen: Tensor, noise: Tensor | float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what follows states (B, dim_s) and actions (B, dim_a) by one model each (B,), and noise (B, dim_s).

        Returns:
            Next states (B, dim_s), rewards (B,), probabilities that the episode ends (B,), and how much the models
            disagree (B,): the root mean square over columns of their standard deviation, in units of the usual change.
        """
        members = self._models.average(torch.cat([states, actions], -1))  # changes and rewards (M, B, dim_s + 2)
        own = members[chosen, torch.arange(len(states), device="cpu")]
        following = states + own[:, :-2] * self.change_scale + noise
        following = following.clamp(-_MOST_DEVIATIONS, _MOST_DEVIATIONS)
        (centre, scale), (low, high) = self._reward_units.T, self._reward_ranges.T
        going_on, ending = (own[:, -2:] * scale + centre).clamp(low, high).T
        compared = members[..., :-1]
        disagreement = (compared - compared.mean(0)).square_().mean((0, 2)).sqrt()  # faster than `var`
        ends = self._ends(following, chosen)
        return following, going_on + ends * (ending - going_on), ends, disagreement

    def _ends(self, reached: Tensor, chosen: Tensor) -> Tensor:
        """Return the probabilities (B,) that episodes end in states (B, dim_s) by one model each (B,)."""
        if not self._learns_ends:
            return torch.full_like(reached[:, 0], self.end_share)

        prior = math.log(self.end_share / (1 - self.end_share))
        members = self._end_models.average(reached)[..., 0]
        return (members[chosen, torch.arange(len(reached), device="cpu")] + prior).sigmoid()

    def missing(self) -> Tensor:
        """Return what the averaged models miss of the scaled changes of at most 16,384 held-out rows, (R, dim_s)."""
        rows = torch.from_numpy(self.held_out[:: len(self.held_out) // _ROWS + 1])
        inputs, target, weight = self._read(rows)
        return (target - self._models.average(inputs).mean(0))[weight[:, 0] > 0, :-2]

    def _read(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs (…, dim_s + dim_a), scaled changes and rewards (…, dim_s + 2), and weights, 0 if unknown."""
        log, inputs = self.log, self.log.inputs(rows)
        change = (log.states(log.next[rows]) - inputs[..., : log.state_dim]) / self._divisor
        rewards, learned, ends = torch.embedding(self._rewards_and_weights, rows).split([2, 1, 2], -1)
        weight = torch.cat([learned.expand_as(change), ends], -1)
        return inputs, torch.cat([change, rewards], -1), weight

    @torch.no_grad()
    def _reached(self, rows: Tensor) -> Tensor:
        """Return the states (M, B, dim_s) after rows (M, B), which models predict if those of terminals are unknown."""
        if self.ends_are_seen:
            return self.log.states(self.log.next[rows])
        inputs = self.log.inputs(rows)
        reached = inputs[..., : self.log.state_dim] + self._models(inputs)[..., :-2] * self.change_scale
        return reached.clamp(-_MOST_DEVIATIONS, _MOST_DEVIATIONS)


def _starts(usable: np.ndarray, is_followed: np.ndarray) -> np.ndarray:
    """Return usable rows from which enough usable rows follow each other for an unroll."""
    if len(usable) < _UNROLLED_STEPS:
        return np.array([], np.int64)
    windows = np.lib.stride_tricks.sliding_window_view
    chained = windows(is_followed, _UNROLLED_STEPS)[:, :-1].all(1)
    return np.flatnonzero(windows(usable, _UNROLLED_STEPS).all(1) & chained)


def _has_change(log: Log) -> np.ndarray:
    """Return whether rows (N,) hold changes of state to learn from, not a terminal whose next state is its own."""
    steps = log.transitions
    return ~(steps.terminals & (steps.next_states == steps.states).all(1))


def _by_end(log: Log) -> tuple[np.ndarray, np.ndarray]:
    """Return the rewards (…,) float64 of rows that are not terminal, and of those that are."""
    rewards, terminals = log.transitions.rewards.astype(np.float64), log.transitions.terminals
    return rewards[~terminals], rewards[terminals]


def _change_scale(log: Log) -> Tensor:
    """Return the root mean square (dim_s,) of normalised changes of state; 0 if only rounding changes."""
    states, learned = log.transitions.states, _has_change(log)
    change = (log.transitions.next_states - states)[learned] / log.state_scale
    size = np.sqrt(np.square(change).sum(0) / max(1, np.count_nonzero(learned)))
    size[size <= ROUNDING * np.abs(states).max(0) / log.state_scale] = 0.0
    return torch.from_numpy(size).float()


def _spread(rewards: np.ndarray) -> list[float]:
    """Return mean and standard deviation of some rewards; 0 and 1 without any."""
    if not len(rewards):
        return [0.0, 1.0]
    return [float(rewards.mean()), max(float(rewards.std()), 1e-6 * float(np.abs(rewards).max())) or 1.0]
