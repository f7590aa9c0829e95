"""Candidates on the (policies x subsets) grid of scores, which the processes of a group share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import Layout, Policy, check_fit, collect
from ..runtime import distributed
from ..runtime.context import current
from ..runtime.group import Group
from ..runtime.progress import progress_bar
from ..runtime.timing import Timings
from .columns import CriticColumns, Tiles
from .model import ScoringModel
from .scoring import score_grid
from .subsets import Drawing, Subsets


@dataclass(frozen=True)
class Share:
    """What one of several processes computes of the scores of P policies.

    Each process scores P // count policies on all subsets. The others, fewer than there are processes, are shared by
    teams: each process of a team acts in some of the states and scores on some of the subsets.

    Attributes:
        whole: Policies that this process scores on all subsets.
        shared: The policy that it shares, or None.
        team: Numbers of the processes that share it, this one among them.
    """

    whole: slice
    shared: int | None
    team: range

    @classmethod
    def of(cls, policies: int, group: Group) -> Share:
        """Return the share of this process of a group in so many policies."""
        each, others = divmod(policies, group.count)
        whole = slice(each * group.rank, each * (group.rank + 1))
        if not others:
            return cls(whole, None, range(0))
        place = group.rank * others // group.count
        first, last = (-(-group.count * i // others) for i in (place, place + 1))
        return cls(whole, each * group.count + place, range(first, last))

    def part(self, total: int, rank: int) -> slice:
        """Return which of `total` adjacent items a process of the team computes."""
        place, count = rank - self.team.start, len(self.team)
        return slice(total * place // count, total * (place + 1) // count)


@dataclass(frozen=True)
class Acted:
    """What this process's share of the candidates does in drawn states.

    Attributes:
        tiles: Columns of the policies that it scores on all subsets.
        shared: (1, U, dim_c) columns of the policy that it shares, or None.
    """

    tiles: Tiles
    shared: Tensor | None


class Candidates:
    """P policies, which act in drawn states as many at a time as fit into memory.

    Args:
        policies: The policies, which all processes know.
        layout: What the model reads of a policy.
        features: (P, F) features, or None.
        critic_columns: Critic whose values join each row, or None.
        timings: To which acting ("policies"), clustering and scoring ("encoding") add their seconds.
    """

    def __init__(
        self,
        policies: list[Policy],
        layout: Layout,
        *,
        features: Tensor | None,
        critic_columns: CriticColumns | None,
        timings: Timings,
    ) -> None:
        self._policies, self._layout, self._features = policies, layout, features
        self._critic_columns, self._timings = critic_columns, timings
        self._group = distributed.current()
        self._share = Share.of(len(policies), self._group)

    def act(self, drawn: Drawing | Subsets) -> Acted:
        """Let the policies act in the drawn states: now or, if their columns need much memory, when they are scored.

        Args:
            drawn: The drawn states, on the CPU.

        Raises:
            OSError: A table of actions cannot be read.
            RuntimeError: A policy raised.
            ValueError: A policy returned something else than its layout.
        """
        own = self._policies[self._share.whole]
        with self._timings.stage("policies"):
            tiles = Tiles(own, drawn, self._layout)
            return Acted(tiles, self._act_together(drawn))

    def _act_together(self, drawn: Drawing | Subsets) -> Tensor | None:
        """Return the columns of the shared policy, (1, U, dim_c), or None. It sees the batches of a single process."""
        share, size, count = self._share, current().batch_size, len(drawn.states)
        if share.shared is None:
            return None
        policy = [self._policies[share.shared]]
        check_fit(policy, drawn.states, drawn.source, self._layout)
        batches = share.part(-(-count // size), self._group.rank)
        rows = slice(batches.start * size, batches.stop * size)
        columns = collect(policy, drawn.states[rows], drawn.source[rows], self._layout)
        return self._group.gather_among(share.team, columns[0])[None]

    def scores(self, acted: Acted, model: ScoringModel, chosen: Drawing | Subsets) -> np.ndarray:
        """Return the model's scores of all candidates on each subset, (P, S) float64, in every process.

        Args:
            acted: What `act` returned for the drawn states.
            model: The scoring model, on the device that clusters and scores.
            chosen: The subsets of the drawn states, which are clustered if they are not yet.
        """
        device = next(model.parameters()).device
        with self._timings.stage("clustering"):
            subsets = chosen.clustered(model.config, device)
        parts = [torch.empty(0, len(subsets), dtype=torch.float32, device=subsets.rows.device)]
        tiles = acted.tiles
        count = len(tiles.policies) + (self._share.shared is not None)
        with progress_bar(count, "ranking", "policy") as bar:
            for tile in tiles:
                with self._timings.stage("policies"):
                    columns = tiles.columns(tile)
                first = self._share.whole.start + tile.start
                place = slice(first, first + len(columns))
                parts.append(self._score(tiles.drawn.states, model, subsets, columns, place))
                bar.update(len(columns))
            shared = self._shared_scores(acted, model, subsets)
            bar.update(self._share.shared is not None)
        with self._timings.stage("encoding"):
            whole = self._group.gather(torch.cat(parts).cpu())
        return torch.cat([whole, shared]).double().numpy()

    def _shared_scores(self, acted: Acted, model: ScoringModel, subsets: Subsets) -> Tensor:
        """Return the scores of all policies that processes share, (R, S), on the CPU."""
        share = self._share
        if share.shared is None or acted.shared is None:
            return torch.empty(0, len(subsets), dtype=torch.float32, device="cpu")
        own = share.part(len(subsets), self._group.rank)
        place = slice(share.shared, share.shared + 1)
        chosen = torch.arange(own.start, own.stop, device="cpu")
        states = acted.tiles.drawn.states
        scores = self._score(states, model, subsets, acted.shared, place, chosen)
        with self._timings.stage("encoding"):
            return self._group.gather(scores.flatten().cpu()).view(-1, len(subsets))

    def _score(
        self,
        states: Tensor,
        model: ScoringModel,
        subsets: Subsets,
        columns: Tensor,
        place: slice,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Return the scores of some policies, by their columns in these states, on all or the chosen subsets."""
        if self._critic_columns is not None:
            with self._timings.stage("policies"):
                columns = self._critic_columns.append(states, columns, self._layout)
        features = None if self._features is None else self._features[place]
        with self._timings.stage("encoding"):
            return score_grid(model, subsets, columns, chosen, current().precision, features)
