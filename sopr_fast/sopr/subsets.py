"""Subsets of the logged states, clustered by k-means (paper section 3.1, steps 1 and 2)."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from .. import ops
from ..data.states import as_states
from ..data.stored import StoredStates
from ..runtime.checks import check_integer
from ..runtime.files import load_tensors, save_tensors
from ..runtime.progress import progress_bar
from .config import Config

_CLUSTERED_AT_ONCE = 8


class _Tensors:
    def to(self, device: torch.device | str) -> Self:
        """The same, its tensors on a device."""
        return replace(self, **{name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)})


@dataclass(frozen=True)
class Subsets(_Tensors):
    """S clustered subsets of N states each, over the U distinct states that were drawn.

    Attributes:
        states: (U, dim_s) float32.
        source: (U,) int64, ascending: the row of each in the user's data.
        rows: (S, N) int32 into `states`, sorted by cluster.
        offsets: (S, K + 1) int32: cluster k of subset s is `rows[s, offsets[s, k]:offsets[s, k + 1]]`.
        centroids: (S, K, dim_s) float32.
        states_count: rows of the user's data.
    """

    states: Tensor
    source: Tensor
    rows: Tensor
    offsets: Tensor
    centroids: Tensor
    states_count: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def state_dim(self) -> int:
        return self.states.shape[1]

    @classmethod
    def draw(
        cls,
        states: Any,
        count: int,
        *,
        size: int = 16384,
        clusters: int = 256,
        seed: int = 0,
        iterations: int = 300,
        restarts: int = 1,
        progress: bool = False,
    ) -> Subsets:
        """Draws `count` subsets without replacement and clusters each; subset s depends on (seed, s) alone.

        Args:
            states: (rows, dim_s) array, tensor, data frame, path of a file, or an array-like object such as an
                `h5py.Dataset`; of HDF5, `.npy` and such objects only the drawn rows are read.
            count, size, clusters: S, N and K.
            seed: 0 or more.
            iterations, restarts: of k-means.

        Raises:
            TypeError: states that are not numbers, or not of a kind named above.
            FileNotFoundError: there is no such file.
            ValueError: names the option, the file, or the first row that is not finite.
        """
        return Drawing.draw(as_states(states), count, size=size, seed=seed).cluster(
            clusters, iterations=iterations, restarts=restarts, progress=progress
        )

    def take(self, count: int) -> Subsets:
        """The first `count` subsets, with just the states they use.

        Raises:
            ValueError: there are fewer, or `count` is less than 1.
        """
        if not 1 <= count <= len(self):
            raise ValueError(f"{count} subsets asked for, there are {len(self)}")
        if count == len(self):
            return self
        used, rows = torch.unique(self.rows[:count], return_inverse=True)
        return Subsets(
            self.states[used],
            self.source[used],
            rows.to(torch.int32),
            self.offsets[:count],
            self.centroids[:count],
            self.states_count,
        )

    def tensors(self) -> dict[str, Tensor]:
        return {
            "states": self.states,
            "source": self.source,
            "rows": self.rows,
            "offsets": self.offsets,
            "centroids": self.centroids,
        }

    def save(self, path: str | os.PathLike) -> None:
        """Writes one safetensors file, whole or not at all.

        Raises:
            OSError: it cannot be written there.
        """
        save_tensors(path, self.tensors(), "set of clustered subsets", {"states_count": self.states_count})

    @classmethod
    def load(cls, path: str | os.PathLike) -> Subsets:
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError, IsADirectoryError: there is no such file, or it is a folder.
            ValueError: the file is truncated or of another kind.
        """
        tensors, description = load_tensors(path, "set of clustered subsets")
        return cls(**tensors, states_count=description["states_count"])


@dataclass(frozen=True)
class Drawing(_Tensors):
    """Subsets drawn, not yet clustered: rows (S, N) into the distinct states, in the order drawn."""

    states: Tensor
    source: Tensor
    rows: Tensor
    states_count: int
    cluster_seeds: Tensor

    @classmethod
    def draw(cls, log: StoredStates, count: int, *, size: int, seed: int, remedy: str = "") -> Drawing:
        """See `Subsets.draw`; of a log smaller than a subset, `remedy` says what to do."""
        seed, count = check_integer("seed", seed, 0), check_integer("subsets", count, 1)
        if check_integer("subset_size", size, 1) > len(log):
            raise ValueError(f"subset_size is {size}, but there are {len(log)} states{remedy}")
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
        return cls(
            torch.from_numpy(log.read(source)),
            torch.from_numpy(source),
            torch.from_numpy(rows),
            len(log),
            torch.from_numpy(seeds),
        )

    def cluster_as(self, config: Config, device: torch.device, *, progress: bool) -> Subsets:
        """Clustered on a device, with the options of a config."""
        return self.to(device).cluster(
            config.clusters,
            iterations=config.kmeans_iterations,
            restarts=config.kmeans_restarts,
            progress=progress,
        )

    def cluster(self, clusters: int, *, iterations: int, restarts: int, progress: bool) -> Subsets:
        """See `Subsets.draw`."""
        if not 1 <= clusters <= self.rows.shape[1]:
            raise ValueError(f"clusters is {clusters}, but a subset has {self.rows.shape[1]} states")
        count = len(self.rows)
        rows, offsets, centroids = [], [], []
        with progress_bar(count, "clustering", "subset", show=progress) as bar:
            for start in range(0, count, _CLUSTERED_AT_ONCE):
                members = self.rows[start : start + _CLUSTERED_AT_ONCE]
                found = ops.kmeans(
                    self.states[members.long()],
                    clusters,
                    iterations=iterations,
                    restarts=restarts,
                    seeds=self.cluster_seeds[start : start + _CLUSTERED_AT_ONCE],
                )
                rows.append(members.gather(1, found.rows.long()))
                offsets.append(found.offsets)
                centroids.append(found.centroids)
                bar.update(len(members))
        return Subsets(
            self.states,
            self.source,
            torch.cat(rows),
            torch.cat(offsets),
            torch.cat(centroids),
            self.states_count,
        )


def _draw_distinct(generator: np.random.Generator, total: int, size: int, seen: np.ndarray) -> np.ndarray:
    """`size` distinct integers below `total`; work grows with `size` alone. `seen` is all False, before and after."""
    if 2 * size > total:
        return generator.permutation(total)[:size]
    picks = np.empty(0, np.int64)
    while len(picks) < size:
        more = generator.integers(total, size=size - len(picks))
        _, first = np.unique(more, return_index=True)
        more = more[np.sort(first)]
        seen[picks] = True
        fresh = more[~seen[more]]
        seen[picks] = False
        picks = np.concatenate([picks, fresh])
    return picks
