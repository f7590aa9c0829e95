"""Columns of policies in the drawn states, in memory or on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.policies import Layout, Policy, collect
from ..runtime import distributed
from ..runtime.limits import tile_bytes
from ..runtime.progress import progress_bar

_MEMORY_TILES = 4  # whose columns stay in memory
_TILE_BYTES = 256 << 20  # at most


def collect_all(
    policies: list[Policy],
    states: Tensor,
    source: Tensor,
    layout: Layout,
    *,
    shared: bool = False,
) -> Tensor:
    """Return the columns of every policy in every state, (P, U, dim_c).

    They are kept on disk if they exceed 1 GiB, or a quarter of the free memory.

    Args:
        policies: P policies.
        states: (U, dim_s) float32 on the CPU.
        source: (U,) int64, their rows in the user's data.
        layout: What the model reads of a policy.
        shared: Whether the processes of the group, which know the same policies, share them.

    Raises:
        OSError: The disk has no room for them.
        RuntimeError: A policy raised.
        ValueError: A policy returned something else than its layout.
    """
    shape = (len(policies), len(states), layout.width)
    if 4 * np.prod(shape) > _MEMORY_TILES * tile_bytes(_TILE_BYTES):
        columns = _on_disk(shape)
    else:
        columns = torch.empty(shape, dtype=torch.float32, device="cpu")
    with progress_bar(len(columns), "acting", "policy") as bar:
        act = collect_shared if shared else collect
        act(policies, states, source, layout, progress=bar.update, out=columns)
    return columns


def collect_shared(
    policies: Sequence[Policy],
    states: Tensor,
    source: Tensor,
    layout: Layout,
    *,
    progress: Callable[[int], Any] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the columns of every policy as `collect` does; processes share the policies, and each gets all columns."""
    group, size = distributed.current(), 4 * len(states) * layout.width
    if group.count == 1:
        return collect(policies, states, source, layout, progress=progress, out=out)
    if out is None:
        out = torch.empty(len(policies), len(states), layout.width, dtype=torch.float32, device="cpu")
    at_once = max(group.count, _TILE_BYTES // max(1, size))
    for first in range(0, len(policies), at_once):
        some, into = policies[first : first + at_once], out[first : first + at_once]
        own = group.part(len(some))
        with distributed.in_one_process():
            collect(some[own], states, source, layout, progress=progress, out=into[own])
        into.copy_(group.gather(into[own]))
        if progress is not None:
            progress(len(some) - (own.stop - own.start))  # of other processes
    return out


def _on_disk(shape: tuple[int, ...]) -> Tensor:
    """Return uninitialised float32 in an unnamed file, with its space reserved where the platform can."""
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
