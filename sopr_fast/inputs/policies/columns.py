"""Columns that the model reads of every policy in every drawn state."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...native import threads, torch_on_one_thread
from ...runtime import distributed
from ...runtime.options import current
from ...runtime.progress import progress_bar
from ...runtime.resources import tile_bytes
from ...runtime.text import list_names
from ...runtime.warn import warn
from .actor import Actor
from .callables import Called
from .meeting import check_actions, check_widths
from .output import Layout, Output
from .policy import Policy

_MEMORY_TILES = 4  # whose columns stay in memory
_TILE_BYTES = 256 << 20  # at most
_PROBE_ROWS = 13  # unlikely to be mistaken for an action width
_BATCH_ROUNDING = 0.02  # of the largest action: half precision and TF32 round otherwise in batches of other sizes


def probe(
    policies: Sequence[Policy], states: Tensor, source: Tensor, layout: Layout | None = None, logged: Any = None
) -> Layout:
    """Return the layout of the policies' columns, from their output in the first few states.

    If any policy is stochastic, the columns are mean and standard deviation. A policy that does not fit fails here,
    before long work; see `collect` and `check_actions` for the errors, and `warn_of_answers`.

    Args:
        policies: At least one.
        states: (N, dim_s) float32 on the CPU.
        source: (N,) int64, the states' rows in the user's data.
        layout: Layout that the policies must fit, that of a model.
        logged: (N_all, width) logged actions, if there are any.
    """
    check_widths(policies, states.shape[1])
    rows = slice(min(_PROBE_ROWS, current().batch_size))
    states, source = states[rows], source[rows]
    outputs = [policy.output(states, source) for policy in policies]
    whose = "the model"
    if layout is None:
        whose, width = f"policy {policies[0].name!r}", outputs[0].mean.shape[1]
        is_gaussian = outputs[0].kind != "discrete" and any(output.kind == "gaussian" for output in outputs)
        layout = Layout("gaussian", width, 2 * width) if is_gaussian else Layout(outputs[0].kind, width, width)
    if logged is not None:
        check_actions(policies, layout, logged)
    pairs = zip(policies, outputs, strict=True)
    columns = torch.stack([_columns(policy, output, layout, whose) for policy, output in pairs])
    warn_of_answers(policies, columns, states, source, layout)
    return layout


def warn_of_answers(
    policies: Sequence[Policy], columns: Tensor, states: Tensor, source: Tensor, layout: Layout
) -> None:
    """Ask policies again in a few states, in another batch; warn if they answer otherwise, or in whole numbers."""
    means = columns[:, : min(_PROBE_ROWS, current().batch_size), : layout.action_dim]
    few = torch.arange(means.shape[1] - 1, (means.shape[1] - 1) // 2, -1, device="cpu")  # none of a single state
    few = few if len(few) else torch.arange(means.shape[1], device="cpu")
    changing = []
    for policy, before in zip(policies, means, strict=True):
        if isinstance(policy, Called):
            after, again = (policy.output(states[few], source[few]).mean for _ in range(2))
            rounding = _BATCH_ROUNDING * before.abs().amax(0) + 1e-5
            is_same = after.shape == again.shape == before[few].shape and torch.allclose(after, again, 1e-3, 1e-5)
            if not is_same or ((after - before[few]).abs() > rounding).any():
                changing.append(policy.name)
    if changing:
        warn(
            f"policies {list_names(changing)} give different actions when asked again for some of the states: return "
            "the mean action (predict with deterministic=True) or the distribution, and answer each state on its own, "
            "without statistics of the batch or reading its rows as a sequence"
        )
    if len(means) and layout.kind != "discrete" and (means == means.abs().round()).all():
        vary = (means != means[:, :1]).any()
        if vary and (layout.action_dim == 1 or means.max() > 1):  # not several of 0 and 1
            warn(
                f"policies {list_names([policy.name for policy in policies])} return whole numbers, which are taken as "
                "continuous actions: if they are indices, return integers, and call "
                "load_policies(…, action_count=N)"
            )


def collect(
    policies: Sequence[Policy], states: Tensor, source: Tensor, layout: Layout, *, show: bool = False
) -> Tensor:
    """Return the columns (P, U, layout.width) float32 of every policy on the CPU; each sees each state once.

    A policy gets at most the `batch_size` of `sopr_fast.options` states at a time. Under kind "action", a stochastic
    policy contributes its mean. Actors read from files act in parallel, each on one thread, so that their actions do
    not depend on the number of threads; other policies act one after another. Columns are kept on disk if they exceed
    1 GiB, or a quarter of the free memory.

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
    batch_size = current().batch_size
    columns = new_columns((len(policies), len(states), layout.width))

    def fill(policy: Policy, columns: Tensor) -> None:
        for first in range(0, len(states), batch_size):
            rows = slice(first, first + batch_size)
            columns[rows] = _columns(policy, policy.output(states[rows], source[rows]), layout)

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


def _columns(policy: Policy, output: Output, layout: Layout, whose: str = "the model") -> Tensor:
    is_discrete = output.kind == "discrete"
    if is_discrete != (layout.kind == "discrete"):
        kinds = ("discrete", "continuous") if is_discrete else ("continuous", "discrete")
        remedy = "if all are discrete, load all policies by sopr_fast.load_policies(…, action_count=…)"
        raise ValueError(f"policy {policy.name!r} has {kinds[0]} actions, {whose} {kinds[1]} ones; {remedy}")
    if output.mean.shape[1] != layout.action_dim:
        shapes = tuple(output.mean.shape), (len(output.mean), layout.action_dim)
        raise ValueError(f"policy {policy.name!r} returned shape {shapes[0]}, expected {shapes[1]} as {whose}")
    if layout.kind != "gaussian":
        return output.mean
    std = torch.zeros_like(output.mean) if output.std is None else output.std
    return torch.cat([output.mean, std], 1)
