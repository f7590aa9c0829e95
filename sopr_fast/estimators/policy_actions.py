"""What every policy does in the states of a log."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import ArrayPolicy, Layout, Policy, collect
from ..runtime import distributed
from ..runtime.options import current
from ..runtime.progress import progress_bar
from .log import Log

_ROWS = 16384


class PolicyActions:
    """Actions of every policy in the states of a log.

    These are actions, samples from stochastic policies, or probabilities of discrete actions. They are collected once
    if they fit in `memory` bytes, else anew for every batch. What an array of actions does in a next state that is no
    logged row is unknown.

    Args:
        policies: P policies.
        layout: Layout of their columns.
        log: The log.
        draws: Actions sampled in every state of a stochastic policy.
        seed: Seed of the sampled actions.
        memory: Largest size of the table of actions, in bytes.

    Attributes:
        policies: The policies.
        layout: Layout of their columns.
        log: The log.
        seed: Seed of the sampled actions.
        draws: Actions sampled in every state; 1 where no policy is stochastic.
        arrays: (P,) bool, whether each policy is an array of actions.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        layout: Layout,
        log: Log,
        *,
        draws: int = 1,
        seed: int = 0,
        memory: float = 1 << 30,
    ):
        self.policies, self.layout, self.log = list(policies), layout, log
        self.seed = seed
        self.draws = draws if layout.kind == "gaussian" else 1
        self.arrays = np.array([isinstance(policy, ArrayPolicy) for policy in policies])
        self._arrays, self._cut = (torch.from_numpy(x).to(log.device) for x in (self.arrays, ~log.followed))
        self._table = None
        shape = (self.draws, len(log.raw_states), len(self.policies), layout.action_dim)
        if 4 * np.prod(shape, dtype=np.float64) <= memory:
            with progress_bar(shape[1], "acting", "state") as bar:
                table = torch.empty(shape, dtype=torch.float32, device="cpu")
                self._table = self._fill(table, bar.update).to(log.device)

    def of(self, part: slice) -> PolicyActions:
        """Return the actions of adjacent policies."""
        own = copy.copy(self)
        own.policies, own.arrays, own._arrays = self.policies[part], self.arrays[part], self._arrays[part]
        own._table = None if self._table is None else self._table[:, :, part]
        return own

    def identity(self) -> tuple[Any, ...]:
        """Return everything that distinguishes these policies on this log from others, for `learning.learn`."""
        taken = self(self.log.evaluated_rows()) if self._table is None else self._table
        return [policy.name for policy in self.policies], self.arrays, taken, *self.log.identity()

    def has_next_action(self, rows: Tensor) -> Tensor | None:
        """Return whether each policy's next action is known.

        Args:
            rows: (..., B) rows of the log.

        Returns:
            (..., P, B) bool, or None if all next actions are known.
        """
        return ~(self._arrays[:, None] & self._cut[rows][..., None, :]) if self.arrays.any() else None

    @property
    def dropped_rows(self) -> np.ndarray:
        """(P,) number of logged rows after which a policy's action is unknown."""
        return self.arrays * np.count_nonzero(~self.log.followed)

    def __call__(self, rows: Tensor, draw: int = 0) -> Tensor:
        """Return actions (..., P, B, dim_a) in rows (..., B) of the table of states.

        Args:
            rows: Rows of the table.
            draw: Which sample of stochastic policies' actions to return, modulo `draws`.
        """
        if self._table is not None:
            return self._table[draw % self.draws][rows].transpose(-2, -3)
        flat = rows.reshape(-1).cpu()
        taken = torch.stack([self._act(policy, flat, draw) for policy in self.policies], 1)
        return taken.view(*rows.shape, *taken.shape[1:]).transpose(-2, -3).to(self.log.device)

    def _fill(self, table: Tensor, progress: Callable[[int], Any]) -> Tensor:
        """Fill and return the table (draws, U, P, dim_a); processes share the policies."""
        group = distributed.current()
        own = self.of(group.part(len(self.policies)))
        for rows in torch.arange(table.shape[1], device="cpu").split(_ROWS):
            taken = group.gather(own._act_all(rows))
            table[:, rows] = taken.permute(1, 2, 0, 3)
            progress(len(rows))
        return table

    def _act_all(self, rows: Tensor) -> Tensor:
        """Return actions (P, draws, B, dim_a) in rows (B,) of the table of states."""
        shape = len(self.policies), self.draws, len(rows), self.layout.action_dim
        taken = torch.empty(shape, dtype=torch.float32, device="cpu")
        together = [] if self.layout.kind == "gaussian" else np.flatnonzero(~self.arrays).tolist()
        if together:
            policies, states, source = [self.policies[p] for p in together], self.log.raw_states[rows], self.log.source
            acted = collect(policies, states, source[rows], self.layout)
            taken[together, 0] = self.log.units.normalise_actions(acted)
        for p in sorted(set(range(len(self.policies))) - set(together)):
            for draw in range(self.draws):
                taken[p, draw] = self._act(self.policies[p], rows, draw)
        return taken

    def _act(self, policy: Policy, rows: Tensor, draw: int) -> Tensor:
        """Return actions (B, dim_a) of one policy in rows (B,) of the table."""
        return torch.cat([self._act_on_batch(policy, batch, draw) for batch in rows.split(current().batch_size)])

    def _act_on_batch(self, policy: Policy, rows: Tensor, draw: int) -> Tensor:
        states, source = self.log.raw_states[rows], self.log.source[rows]
        if self.layout.kind != "gaussian":
            return self.log.units.normalise_actions(policy.output(states, source).mean)
        key = np.random.SeedSequence([self.seed, draw, int(rows[0])]).generate_state(1)[0]
        sampled = policy.sample(states, torch.Generator().manual_seed(int(key)), source)
        return self.log.units.normalise_actions(sampled)
