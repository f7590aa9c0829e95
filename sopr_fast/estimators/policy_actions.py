"""What every policy does in the states of a log."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import ArrayPolicy, Layout, Policy, collect, new_columns
from ..runtime import distributed
from ..runtime.options import current
from ..runtime.progress import progress_bar
from .log import Log

_DRAWS = 4  # actions sampled in every state of a stochastic policy
_ROWS = 16384


class PolicyActions:
    """What P policies do in the states of a log: actions, samples of stochastic policies, or probabilities of actions.

    Attributes:
        draws: Actions sampled in every state; 1 if no policy is stochastic.
    """

    def __init__(self, policies: list[Policy], layout: Layout, log: Log, *, seed: int = 0):
        self.policies, self.layout, self.log, self.seed = policies, layout, log, seed
        self.draws = _DRAWS if layout.kind == "gaussian" else 1
        self._table: Tensor | None = None

    def tabulate(self) -> None:
        """Let all policies act in all states at once, next states too."""
        refuse_arrays(self.policies)
        count = len(self.log.raw_states)
        table = new_columns((self.draws, count, len(self.policies), self.layout.action_dim))
        group = distributed.current()  # processes share the policies
        own = self.of(group.part(len(self.policies)))
        with progress_bar(count, "acting", "state") as bar:
            for rows in torch.arange(count, device="cpu").split(_ROWS):
                table[:, rows] = group.gather(own._act(rows, range(self.draws))).permute(1, 2, 0, 3)
                bar.update(len(rows))
        self._table = table

    def of(self, part: slice) -> PolicyActions:
        """Return the actions of adjacent policies."""
        own = copy.copy(self)
        own.policies = self.policies[part]
        own._table = None if self._table is None else self._table[:, :, part]
        return own

    def identity(self) -> tuple[Any, ...]:
        """Return everything that distinguishes these policies on this log from others, for `learning.learn`."""
        return [policy.name for policy in self.policies], self._table, *self.log.identity()

    def __call__(self, rows: Tensor, draw: int = 0) -> Tensor:
        """Return actions (..., P, B, dim_a) in rows (..., B) of the table of states: sample `draw` modulo `draws`."""
        if self._table is not None:
            taken = self._table[draw % self.draws].index_select(0, rows.flatten())  # (…, P, dim_a)
            return taken.unflatten(0, rows.shape).transpose(-2, -3)
        taken = self._act(rows.reshape(-1), [draw % self.draws])[:, 0]
        return taken.unflatten(1, rows.shape).movedim(0, -3)

    def _act(self, rows: Tensor, draws: Sequence[int]) -> Tensor:
        """Return samples (P, draws, B, dim_a) of what policies do in rows (B,) of the table of states."""
        log = self.log
        if self.layout.kind != "gaussian":
            acted = collect(self.policies, log.raw_states[rows], log.source[rows], self.layout)
            return log.normalise_actions(acted)[:, None]
        shape = len(self.policies), len(draws), len(rows), self.layout.action_dim
        taken = torch.empty(shape, dtype=torch.float32, device="cpu")
        for own, policy in zip(taken, self.policies, strict=True):
            for sample, draw in zip(own, draws, strict=True):
                sample[:] = torch.cat([self._sample(policy, batch, draw) for batch in rows.split(current().batch_size)])
        return log.normalise_actions(taken)

    def _sample(self, policy: Policy, rows: Tensor, draw: int) -> Tensor:
        """Return sampled actions (B, dim_a) of one policy in rows (B,) of the table."""
        key = np.random.SeedSequence([self.seed, draw, int(rows[0])]).generate_state(1)[0]
        output = policy.output(self.log.raw_states[rows], self.log.source[rows])
        return output.sample(torch.Generator().manual_seed(int(key)))


def refuse_arrays(policies: list[Policy]) -> None:
    """Raise ValueError if a policy is an array of actions."""
    for policy in policies:
        if isinstance(policy, ArrayPolicy):
            raise ValueError(
                f"policy {policy.name!r} is an array of actions, which tells of no states but logged ones; pass the "
                "policy itself, or take another estimator, such as BehaviourQ"
            )
