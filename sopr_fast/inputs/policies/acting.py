"""What policies do in many states, as columns that the model reads."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ...native import threads, torch_on_one_thread
from ...runtime import distributed
from ...runtime.options import current
from ...runtime.progress import progress_bar
from ...runtime.resources import tile_bytes
from .actor import Actor
from .output import Layout
from .policy import Policy

_MEMORY_TILES = 4  # whose columns stay in memory
_TILE_BYTES = 512 << 20  # at most


def collect(
    policies: Sequence[Policy], states: Tensor, source: Tensor, layout: Layout, *, show: bool = False
) -> Tensor:
    """Return the columns (P, U, layout.width) float32 of every policy on the CPU; each sees each state once.

    A policy gets at most the `batch_size` of `sopr_fast.options` states at a time. Under kind "action", a stochastic
    policy contributes its mean. Actors read from files act in parallel, each on one thread, so that their actions do
    not depend on the number of threads; other policies act one after another. Columns are kept on disk if they exceed
    2 GiB, or a quarter of the free memory.

    Args:
        policies: The policies.
        states: (U, dim_s) float32 on the CPU.
        source: (U,) int64, the states' rows in the user's data.
        layout: Layout of the columns.
        show: Show a progress bar.

    Raises:
        OSError: The disk has no room for the columns.
        ValueError: A policy returned something wrong, or actions of another kind or width than the layout's. The
            message names the policy and the row of the user's data.
        RuntimeError: A policy raised; its error is the cause.
    """
    size, columns = current().batch_size, new_columns((len(policies), len(states), layout.width))

    def fill(policy: Policy, columns: Tensor) -> None:
        for first in range(0, len(states), size):  # none of no states
            rows = slice(first, first + size)
            columns[rows] = layout.columns(policy.name, policy.output(states[rows], source[rows]))

    parts = list(zip(policies, columns, strict=True))
    with progress_bar(len(parts), "acting", "policy", show=show) as bar:
        with (
            torch_on_one_thread(),
            ThreadPoolExecutor(threads(), initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            for _ in pool.map(lambda part: fill(*part), [part for part in parts if isinstance(part[0], Actor)]):
                bar.update()
        for policy, own in parts:
            if not isinstance(policy, Actor):
                fill(policy, own)
                bar.update()
    return columns


def collect_shared(policies: list[Policy], states: Tensor, source: Tensor, layout: Layout) -> Tensor:
    """Return the columns as `collect` does; processes share the policies, and each gets all columns."""
    group = distributed.current()
    return group.gather(collect(policies[group.part(len(policies))], states, source, layout, show=True))


def new_columns(shape: tuple[int, ...]) -> Tensor:
    """Return uninitialised float32, in an unnamed file if it is large, with its space reserved if the platform can."""
    size = 4 * math.prod(shape)
    if size <= _MEMORY_TILES * tile_bytes(_TILE_BYTES):
        return torch.empty(shape, dtype=torch.float32, device="cpu")
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
