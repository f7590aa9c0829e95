"""The loop that trains any of the networks here: batches by seed, curves, bars, checkpoints."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runtime.checkpoints import Checkpoint, fingerprint, optimizer_tensors, restore_optimizer
from ..runtime.progress import progress_bar

CHECKPOINT = "baseline checkpoint"  # the kind of such files
_BLOCK = 64
_RECORDS = 50


class Batches:
    """Rows of update u, (M, B) int64: they depend on (seed, u) alone.

    Args:
        pools: for each of M members the rows it draws from.
    """

    def __init__(self, pools: list[np.ndarray], size: int, seed: int, device: torch.device | str):
        self.pools, self.size, self.seed, self.device = pools, size, seed, device
        self._block: tuple[int, Tensor] | None = None

    def __call__(self, update: int) -> Tensor:
        block, place = divmod(update, _BLOCK)
        if self._block is None or self._block[0] != block:
            random = np.random.default_rng([self.seed, 1, block])
            drawn = [pool[random.integers(0, len(pool), (_BLOCK, self.size))] for pool in self.pools]
            self._block = block, torch.from_numpy(np.stack(drawn, 1)).to(self.device)
        return self._block[1][place]


class Learner(ABC):
    """Networks and their optimisers, and one update of them.

    Attributes:
        trained: tensors by name that training changes, other than the optimisers'.
        optimizers: by name.
    """

    trained: dict[str, Tensor]
    optimizers: dict[str, torch.optim.Optimizer]

    @abstractmethod
    def step(self, update: int) -> Tensor:
        """Does an update and returns losses, (any,) detached."""

    def tensors(self) -> dict[str, Tensor]:
        found = {f"trained.{name}": value.detach() for name, value in self.trained.items()}
        for name, optimizer in self.optimizers.items():
            found |= optimizer_tensors(optimizer, name)
        return found

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        for name, value in self.trained.items():
            value.copy_(tensors[f"trained.{name}"])
        for name, optimizer in self.optimizers.items():
            restore_optimizer(optimizer, tensors, name)


def learn(
    learner: Learner,
    updates: int,
    *,
    description: str,
    watch: Callable[[], list[float]] | None = None,
    checkpoint: str | os.PathLike | None = None,
    identity: Callable[[], Iterable[Any]] = tuple,
    progress: bool = True,
) -> dict[str, list]:
    """Trains to `updates` and returns curves: "updates", "seconds", "loss" (mean since the record before) and, with
    `watch`, "values".

    With `checkpoint`, goes on from that file if it is there, to the same end; `identity` tells this run from others.
    Where `watch` sees else there than was seen, "values" are nan before.

    Raises:
        OSError: the checkpoint cannot be written there.
        ValueError: the checkpoint is damaged, or of another run.
        FloatingPointError: the loss is no longer finite.
    """
    file = Checkpoint(checkpoint, CHECKPOINT, "transitions")
    history: dict[str, list] = {"updates": [], "seconds": [], "loss": [], **({"values": []} if watch else {})}
    if checkpoint is not None:
        file.identify(fingerprint(*identity()))
    if (state := file.load()) is not None:
        tensors, values = state
        history = values["history"]
        learner.restore(tensors)
        _watch_on(history, watch)
    done = history["updates"][-1] if history["updates"] else 0
    spent = history["seconds"][-1] if history["seconds"] else 0.0
    every = max(1, updates // _RECORDS)
    total: Any = 0.0
    begun = time.monotonic()
    with progress_bar(updates, description, "update", show=progress, initial=done) as bar, file.training():
        for update in range(done, updates):
            total = total + learner.step(update)
            bar.update()
            if (update + 1) % every and update + 1 < updates:
                continue
            loss = total / (update + 1 - done)
            done, total = update + 1, 0.0
            if not loss.isfinite().all():
                raise FloatingPointError(f"{description}: the loss is not finite after {done} updates; lower the rate")
            history["updates"].append(done)
            history["seconds"].append(spent + time.monotonic() - begun)
            history["loss"].append(loss.tolist())
            if watch is not None:
                history["values"].append(watch())
            bar.set_postfix(loss=f"{float(loss.mean()):.3g}", refresh=False)
            file.keep(
                learner.tensors(),
                {"history": history},
                progress=f"{done} of {updates} updates",
                last=update + 1 == updates,
            )
    return history


def mean_of_known(values: Tensor, known: Tensor | None) -> Tensor:
    """(C, B) → (C,): the mean over rows that are known (C, B), all if None; 0 of none."""
    if known is None:
        return values.mean(1)
    return (values * known).sum(1) / known.sum(1).clamp(min=1)


def _watch_on(history: dict[str, list], watch: Callable[[], list[float]] | None) -> None:
    """Leaves in a curve what `watch` saw, told by the last record, which is of the networks as they are."""
    if watch is None:
        history.pop("values", None)
        return
    *before, last = history.get("values", [[]] * len(history["updates"]))
    now = watch()
    if len(last) != len(now) or not np.allclose(last, now):
        history["values"] = [[math.nan] * len(now) for _ in before] + [now]
