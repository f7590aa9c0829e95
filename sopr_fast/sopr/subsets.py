"""Subsets of the logged states, clustered by k-means (paper section 3.1, steps 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import ops
from ..argument_types import LogLike
from ..inputs.logs import StoredStates, load_states
from ..runtime import distributed
from ..runtime.checks import integer
from ..runtime.progress import progress_bar
from ..runtime.tensor_files import check_tensors
from ..runtime.warn import warn
from .config import Config

_CLUSTERED_AT_ONCE = 8
_LAYOUT = {
    "states": (torch.float32, "U D"),
    "source": (torch.int64, "U"),
    "rows": (torch.int32, "S N"),
    "cluster_seeds": (torch.int64, "S"),
}


@dataclass(frozen=True)
class Subsets:
    """S clustered subsets of N states each, over the U distinct states drawn (paper section 3.1).

    Attributes:
        states: (U, dim_s) float32 distinct states.
        source: (U,) int64 their rows in the user's data, ascending.
        rows: (S, N) int32 indices into `states`, sorted by cluster.
        offsets: (S, K + 1) int32; cluster k of subset s is `rows[s, offsets[s, k]:offsets[s, k + 1]]`.
        states_count: Rows of the user's data.
    """

    states: Tensor
    source: Tensor
    rows: Tensor
    offsets: Tensor
    states_count: int

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def long_tiles(self) -> int:
        """Tiles of the long clusters, see `ops.long_tiles`; the host waits for a GPU, once."""
        return ops.long_tiles(self.offsets)

    @property
    def state_dim(self) -> int:
        """Width of a state."""
        return self.states.shape[1]

    @classmethod
    def draw(cls, states: LogLike, count: int, *, size: int, clusters: int, seed: int = 0) -> Subsets:
        """Draw subsets and cluster them on the CPU; see `Drawing`."""
        drawing = Drawing.draw(load_states(states), count, size=size, seed=seed)
        return drawing.clustered(clusters, torch.device("cpu"))


@dataclass(frozen=True)
class Drawing:
    """Subsets drawn but not yet clustered, see `Subsets`, and what the log says of its actions and columns."""

    states: Tensor
    source: Tensor
    rows: Tensor  # in the order drawn
    cluster_seeds: Tensor  # (S,) int64
    states_count: int
    actions: Any = None
    columns: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def draw(cls, log: StoredStates, count: int, *, size: int, seed: int) -> Drawing:
        """Draw S = `count` subsets of N = `size` states without replacement; subset s depends only on (seed, s)."""
        seed, count = integer(0)("seed", seed), integer(1)("subsets", count)
        if integer(1)("subset_size", size) > len(log):
            half = max(1, len(log) // 2)  # so that subsets differ
            raise ValueError(
                f"subset_size is {size}, but there are {len(log)} states: pass more, or train with "
                f"Config(subset_size={half}, clusters={min(Config.clusters, half)})"
            )
        if count > 1 and 2 * size > len(log):
            warn(
                f"subsets of {size} of {len(log)} states have most of them in common: standard errors and win "
                "probabilities are too sure. Lower subset_size, or give more states"
            )
        drawn = np.empty((count, size), np.int64)
        seeds = np.empty(count, np.int64)
        taken = np.zeros(len(log), bool)
        for s in range(count):
            generator = np.random.default_rng([seed, s])
            drawn[s] = _draw_distinct(generator, len(log), size, taken)
            seeds[s] = generator.integers(2**62)
        taken[drawn] = True
        source = np.flatnonzero(taken)
        rows = np.searchsorted(source, drawn).astype(np.int32)
        arrays = {"states": log.read(source), "source": source, "rows": rows, "cluster_seeds": seeds}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return cls(**tensors, states_count=len(log), actions=log.actions, columns=log.columns)

    def take(self, count: int) -> Drawing:
        """Return the first `count` subsets with the states they use, or raise ValueError if there are not so many."""
        if integer(1)("subsets", count) > len(self):
            raise ValueError(f"cannot take {count} subsets: there are {len(self)}; pass the log as states=… for more")
        used, rows = torch.unique(self.rows[:count], return_inverse=True)
        tensors = self.states[used], self.source[used], rows.to(torch.int32), self.cluster_seeds[:count]
        return Drawing(*tensors, self.states_count)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: getattr(self, name) for name in _LAYOUT}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Any], states_count: int) -> Drawing:
        """Return the subsets in a model file; raise ValueError if their tensors do not fit each other."""
        sizes = check_tensors(tensors, _LAYOUT)
        drawing = cls(**tensors, states_count=states_count)
        source, rows = drawing.source, drawing.rows
        if 0 in sizes.values():
            raise ValueError(f"subsets of shape {sizes}")
        if not drawing.states.isfinite().all():
            raise ValueError("states are not finite")
        if source[0] < 0 or source[-1] >= states_count or (source.diff() <= 0).any():
            raise ValueError(f"source must ascend from 0 to {states_count - 1}")
        if rows.min() < 0 or rows.max() >= sizes["U"]:
            raise ValueError(f"rows must be from 0 to {sizes['U'] - 1}")
        return drawing

    def clustered(self, clusters: int, device: torch.device) -> Subsets:
        """Return the subsets in so many clusters, computed on a device; processes of a group share them."""
        group = distributed.current()
        own = group.part(len(self.rows))
        states, members = self.states.to(device), self.rows[own].to(device)
        seeds = self.cluster_seeds[own].to(device)
        sorted_rows, offsets = [members[:0]], [members.new_empty(0, clusters + 1)]
        with progress_bar(len(members), "clustering", "subset") as bar:
            for some, own_seeds in zip(members.split(_CLUSTERED_AT_ONCE), seeds.split(_CLUSTERED_AT_ONCE), strict=True):
                clustering = ops.kmeans(states[some.long()], clusters, seeds=own_seeds)
                sorted_rows.append(some.gather(1, clustering.rows.long()))
                offsets.append(clustering.offsets)
                bar.update(len(some))
        parts = group.gather(torch.cat(sorted_rows)), group.gather(torch.cat(offsets))
        return Subsets(states, self.source.to(device), *parts, self.states_count)


def _draw_distinct(generator: np.random.Generator, total: int, size: int, seen: np.ndarray) -> np.ndarray:
    """Return `size` distinct integers below `total`, in work that grows only with `size`.

    `seen` is a scratch buffer, (total,), False before and after.
    """
    if 2 * size > total:
        return generator.permutation(total)[:size]
    picks = np.empty(0, np.int64)
    while len(picks) < size:
        batch = generator.integers(total, size=size - len(picks))
        _, first = np.unique(batch, return_index=True)
        batch = batch[np.sort(first)]
        seen[picks] = True
        fresh = batch[~seen[batch]]
        seen[picks] = False
        picks = np.concatenate([picks, fresh])
    return picks
