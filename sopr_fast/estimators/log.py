"""Transitions as the estimators read them: one table of states, and what every policy does in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data import Transitions, load
from ..policies import ArrayPolicy, Layout, Policy, as_policies, collect, probe
from ..policies.output import one_hot
from ..runtime.progress import progress_bar

_ROWS = 16384
_EVALUATED_ROWS = 65536


@dataclass(frozen=True)
class Units:
    """How states and actions of a log are brought to what networks read.

    Attributes:
        mean, scale: (dim_s,) float32 of the logged states, on the device of the networks.
        action_scale: (dim_a,), the largest magnitude of each column of continuous actions, 1 where that is 0.
        action_dim: of what networks read: of discrete actions their number.
    """

    mean: Tensor
    scale: Tensor
    action_scale: np.ndarray
    action_dim: int
    discrete: bool

    @property
    def state_dim(self) -> int:
        return len(self.mean)

    def normalise(self, states: Tensor) -> Tensor:
        return (states - self.mean) / self.scale

    def denormalise(self, states: Tensor) -> Tensor:
        return states * self.scale + self.mean


class Log:
    """Transitions as tensors.

    States and next states are rows of one table (U, dim_s): the N logged states, then the next states that no row
    follows (ends of episodes), so that a policy's actions on both are asked for once.

    Attributes:
        raw_states: (U, dim_s) float32 on the CPU.
        source: (U,) int64 on the CPU: the states' rows in the user's data; of a next state that no row follows, the row
            it comes after.
        actions: (N, dim_a), continuous ones divided by `units.action_scale`.
        rewards, terminals: (N,) float32, the latter 1 where the environment ended.
        next: (N,) int64 rows of the table.
        followed: (N,) bool on the CPU, where what comes next is a logged row, or nothing.
        initial: (E,) int64 rows of the table.
    """

    def __init__(
        self, transitions: Transitions, *, action_count: int | None = None, device: torch.device | str = "cpu"
    ):
        self.transitions, self.device = transitions, torch.device(device)
        states, following = transitions.states, transitions.next_states
        self.count = len(states)
        follows = np.zeros(self.count, bool)
        follows[:-1] = (following[:-1] == states[1:]).all(1)
        follows[transitions.episodes[1:] - 1] = False
        beyond = np.flatnonzero(~follows)
        next_rows = np.arange(1, self.count + 1)
        next_rows[beyond] = self.count + np.arange(len(beyond))
        self.source = torch.from_numpy(np.concatenate([transitions.source, transitions.source[beyond]]))
        self.raw_states = torch.from_numpy(np.concatenate([states, following[beyond]]))
        mean, scale = states.mean(0, dtype=np.float64), states.std(0, dtype=np.float64)
        self.state_scale = scale = np.where(scale > 1e-6, scale, 1.0)
        self._table = self.raw_states.to(self.device)
        action_scale = np.ones(transitions.actions.shape[1], np.float32)
        if action_count is not None:
            actions = _one_hot_actions(transitions.actions, action_count)
        else:
            largest = np.abs(transitions.actions).max(0)
            action_scale = np.where(largest > 0, largest, 1).astype(np.float32)
            actions = torch.from_numpy(transitions.actions / action_scale)
        self.actions = actions.to(self.device)
        mean, scale = (torch.from_numpy(x).float().to(self.device) for x in (mean, scale))
        self.units = Units(mean, scale, action_scale, actions.shape[1], discrete=action_count is not None)
        self.rewards = torch.from_numpy(transitions.rewards).to(self.device)
        self.terminals = torch.from_numpy(transitions.terminals).float().to(self.device)
        self.next = torch.from_numpy(next_rows).to(self.device)
        self.followed = transitions.terminals | (next_rows < self.count)
        self.initial = torch.from_numpy(transitions.episodes[:-1]).to(self.device)

    def identity(self) -> tuple[Any, ...]:
        """All that an estimate can depend on, for `learning.learn`."""
        logged = self.transitions
        parts = logged.states, logged.actions, logged.rewards, logged.next_states, logged.terminals, logged.episodes
        return self.discrete, self.action_dim, *parts

    @property
    def state_dim(self) -> int:
        return self.units.state_dim

    @property
    def action_dim(self) -> int:
        return self.units.action_dim

    @property
    def discrete(self) -> bool:
        return self.units.discrete

    def states(self, rows: Tensor) -> Tensor:
        """Rows of the table, each column with mean 0 and standard deviation 1 over the logged states."""
        return self.units.normalise(self._table[rows])

    def evaluated_rows(self, limit: int = _EVALUATED_ROWS) -> Tensor:
        """All logged rows, or `limit` evenly spaced ones."""
        if self.count <= limit:
            return torch.arange(self.count, device=self.device)
        return torch.linspace(0, self.count - 1, limit, dtype=torch.float64, device="cpu").long().to(self.device)

    def pools(self, usable: np.ndarray, members: int, seed: int) -> list[np.ndarray]:
        """For each of `members` the usable rows it learns from: all for one, else a bootstrap draw of episodes."""
        if members == 1:
            return [np.flatnonzero(usable)]
        episodes = self.transitions.episodes
        pools = []
        for member in range(members):
            random = np.random.default_rng([seed, 2, member])
            drawn = random.integers(0, len(episodes) - 1, len(episodes) - 1)
            rows = np.concatenate([np.arange(episodes[e], episodes[e + 1]) for e in drawn])
            rows = rows[usable[rows]]
            pools.append(rows if len(rows) else np.flatnonzero(usable))
        return pools


def _one_hot_actions(actions: np.ndarray, count: int) -> Tensor:
    """(N, count) of indices (N, 1) or one-hot rows."""
    if actions.shape[1] == 1 and count > 1:
        index = actions[:, 0]
        wrong = (index != np.round(index)) | (index < 0) | (index >= count)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"transitions: action {index[row]} at row {row} is no index from 0 to {count - 1}")
        return one_hot(torch.from_numpy(index), count)
    if actions.shape[1] != count or not np.isin(actions, (0, 1)).all() or (actions.sum(1) != 1).any():
        raise ValueError(
            f"transitions: discrete actions must be indices (N, 1) or one-hot (N, {count}), got {actions.shape}"
        )
    return torch.from_numpy(actions)


def read(
    policies: Any, transitions: Any, *, action_count: int | None = None, device: torch.device | str = "cpu"
) -> tuple[list[Policy], Layout, Log]:
    """Policies, what they do, and the log they are to be evaluated on, checked before long work.

    Raises:
        TypeError, ValueError, OSError: names the policy, row or file at fault.
    """
    transitions = load(transitions)
    found = as_policies(policies, states_count=transitions.source_count, action_count=action_count)
    states, source = torch.from_numpy(transitions.states), torch.from_numpy(transitions.source)
    layout = probe(found, states, source)
    log = Log(transitions, action_count=layout.action_dim if layout.kind == "discrete" else None, device=device)
    if log.action_dim != layout.action_dim:
        raise ValueError(
            f"policy {found[0].name!r} has {layout.action_dim} action columns, the transitions have {log.action_dim}"
        )
    return found, layout, log


class PolicyActions:
    """What every policy does in rows of a log's table: actions, draws of stochastic ones, probabilities of discrete.

    Asked for once where they fit `memory` bytes, else anew for every batch. Of arrays of actions, what they do where
    no row follows is not `known`.

    Args:
        draws: actions drawn in every state of a stochastic policy.

    Raises:
        ValueError: an array of actions would be known in no row.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        layout: Layout,
        log: Log,
        *,
        draws: int = 1,
        seed: int = 0,
        memory: int = 1 << 30,
        progress: bool = True,
    ):
        self.policies, self.layout, self.log, self.seed = list(policies), layout, log, seed
        self.draws = draws if layout.kind == "gaussian" else 1
        self.arrays = np.array([isinstance(policy, ArrayPolicy) for policy in policies])
        if self.arrays.any() and not log.followed.any():
            raise ValueError("arrays of actions say nothing of the next states of these transitions")
        self._arrays, self._cut = (torch.from_numpy(x).to(log.device) for x in (self.arrays, ~log.followed))
        self._scale = torch.from_numpy(log.units.action_scale)
        self._table = None
        shape = (self.draws, len(log.raw_states), len(self.policies), layout.action_dim)
        if 4 * np.prod(shape, dtype=np.float64) <= memory:
            with progress_bar(shape[1], "acting", "state", show=progress) as bar:
                table = torch.empty(shape, dtype=torch.float32, device="cpu")
                self._table = self._everywhere(table, bar.update).to(log.device)

    def identity(self) -> tuple[Any, ...]:
        """What tells these policies on this log from others, for `learning.learn`."""
        acted = self(self.log.evaluated_rows()) if self._table is None else self._table
        return [policy.name for policy in self.policies], self.arrays, acted, *self.log.identity()

    def known(self, rows: Tensor) -> Tensor | None:
        """(..., B) rows of the log → (..., P, B) bool, whether what the policies do next is known; None if all is."""
        return ~(self._arrays[:, None] & self._cut[rows][..., None, :]) if self.arrays.any() else None

    @property
    def dropped_rows(self) -> np.ndarray:
        """(P,) of the log, after which it is not known."""
        return self.arrays * np.count_nonzero(~self.log.followed)

    def __call__(self, rows: Tensor, draw: int = 0) -> Tensor:
        """(..., B) rows → (..., P, B, dim_a)."""
        if self._table is not None:
            return self._table[draw % self.draws][rows].transpose(-2, -3)
        flat = rows.reshape(-1).cpu()
        acted = torch.stack([self._act(policy, flat, draw) for policy in self.policies], 1)
        return acted.view(*rows.shape, *acted.shape[1:]).transpose(-2, -3).to(self.log.device)

    def _everywhere(self, table: Tensor, progress: Callable[[int], Any]) -> Tensor:
        """Fills the table (draws, U, P, dim_a)."""
        together = [p for p, policy in enumerate(self.policies) if not isinstance(policy, ArrayPolicy)]
        if self.layout.kind == "gaussian":
            together = []
        policies = [self.policies[p] for p in together]
        for rows in torch.arange(table.shape[1], device="cpu").split(_ROWS):
            if together:
                acted = collect(policies, self.log.raw_states[rows], self.log.source[rows], self.layout)
                table[0, rows[:, None], together] = acted.transpose(0, 1) / self._scale
            for p in sorted(set(range(len(self.policies))) - set(together)):
                for draw in range(self.draws):
                    table[draw, rows, p] = self._act(self.policies[p], rows, draw)
            progress(len(rows))
        return table

    def _act(self, policy: Policy, rows: Tensor, draw: int) -> Tensor:
        """(B, dim_a) of one policy in rows (B,) of the table."""
        states, source = self.log.raw_states[rows], self.log.source[rows]
        if self.layout.kind != "gaussian":
            return policy.output(states, source).mean / self._scale
        key = np.random.SeedSequence([self.seed, draw, int(rows[0])]).generate_state(1)[0]
        return policy.sample(states, torch.Generator().manual_seed(int(key)), source) / self._scale
