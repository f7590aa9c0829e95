"""The columns that many policies give a model, where they may be too many for memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..policies import Layout, Policy, check_fit, collect
from ..runtime.progress import progress_bar
from .subsets import Drawing, Subsets

_MEMORY_BYTES = 1 << 30
_TILE_BYTES = 256 << 20


def collect_all(
    policies: list[Policy],
    drawn: Drawing | Subsets,
    layout: Layout,
    *,
    more: int = 0,
    batch_size: int,
    progress: bool,
) -> Tensor:
    """Columns (P, U, dim_c + `more`) of every policy, the last ones left to fill; on disk if they take over 1 GiB.

    Raises:
        OSError: the disk has no room for them.
        ValueError, RuntimeError: as `collect`.
    """
    shape = (len(policies), len(drawn.states), layout.width + more)
    if 4 * np.prod(shape) > _MEMORY_BYTES:
        columns = _on_disk(shape)
    else:
        columns = torch.empty(shape, dtype=torch.float32, device="cpu")
    out = columns[..., : layout.width]
    with progress_bar(len(policies), "acting", "policy", show=progress) as bar:
        collect(policies, drawn.states, drawn.source, layout, batch_size=batch_size, progress=bar.update, out=out)
    return columns


def _on_disk(shape: tuple[int, ...]) -> Tensor:
    """New float32 numbers in a file without a name, whose space is taken at once where the platform can."""
    size = 4 * int(np.prod(shape))
    with tempfile.NamedTemporaryFile(prefix="sopr_fast-columns-") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk would else end the process, when a page is written
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise OSError(
                    f"columns need {size / 2**30:.1f} GiB in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to "
                    "another folder"
                ) from error
        return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))


class Tiles:
    """Policies, as many at a time as give 256 MiB of columns.

    They act at once where all columns take 1 GiB at most, so that a bad row is found before long work; else when their
    turn comes. Every drawn state is shown once.
    """

    def __init__(
        self, policies: list[Policy], drawn: Drawing | Subsets, layout: Layout, *, batch_size: int, progress: bool
    ):
        self.policies, self.drawn, self.layout, self.batch_size = policies, drawn, layout, batch_size
        check_fit(policies, drawn.states, drawn.source, layout, batch_size=batch_size)
        policy_bytes = 4 * len(drawn.states) * layout.width
        self._at_once = max(1, _TILE_BYTES // policy_bytes)
        self._kept = None
        if len(policies) * policy_bytes <= _MEMORY_BYTES:
            self._kept = collect_all(policies, drawn, layout, batch_size=batch_size, progress=progress)

    def __iter__(self) -> Iterator[slice]:
        return (slice(first, first + self._at_once) for first in range(0, len(self.policies), self._at_once))

    def columns(self, tile: slice) -> Tensor:
        """(p, U, dim_c)

        Raises:
            ValueError, RuntimeError: as `collect`.
        """
        if self._kept is not None:
            return self._kept[tile]
        states, source = self.drawn.states, self.drawn.source
        return collect(self.policies[tile], states, source, self.layout, batch_size=self.batch_size)
