"""Columns of policies in the drawn states, in memory or on disk."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import torch
from torch import Tensor

from ...runtime import distributed
from ...runtime.limits import tile_bytes
from ...runtime.progress import progress_bar
from .layout import Layout, collect
from .policy import Policy

_MEMORY_TILES = 4  # whose columns stay in memory
_TILE_BYTES = 256 << 20  # at most


def collect_all(policies: list[Policy], states: Tensor, source: Tensor, layout: Layout) -> Tensor:
    """Return the columns of P policies in U states on the CPU, (P, U, dim_c); see `collect`.

    They are kept on disk if they exceed 1 GiB, or a quarter of the free memory; OSError if it has no room for them.
    """
    shape = (len(policies), len(states), layout.width)
    if 4 * np.prod(shape) > _MEMORY_TILES * tile_bytes(_TILE_BYTES):
        columns = _on_disk(shape)
    else:
        columns = torch.empty(shape, dtype=torch.float32, device="cpu")
    with progress_bar(len(columns), "acting", "policy") as bar:
        return collect(policies, states, source, layout, progress=bar.update, out=columns)


def collect_shared(policies: list[Policy], states: Tensor, source: Tensor, layout: Layout) -> Tensor:
    """Return the columns as `collect_all` does; processes share the policies, and each gets all columns."""
    group = distributed.current()
    return group.gather(collect_all(policies[group.part(len(policies))], states, source, layout))


def _on_disk(shape: tuple[int, ...]) -> Tensor:
    """Return uninitialised float32 in an unnamed file, with its space reserved if the platform can."""
    size = 4 * int(np.prod(shape))
    with tempfile.NamedTemporaryFile(prefix="sopr_fast-columns-") as file:
        if hasattr(os, "posix_fallocate"):  # else a full disk ends the process when it writes a page
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise OSError(
                    f"columns need {size / 2**30:.1f} GiB in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to "
                    "another folder"
                ) from error
        return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))
