"""The training loop of all networks of the estimators."""

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

from ..runtime.adam import Adam
from ..runtime.checkpoints import Checkpoint
from ..runtime.fields import any_number, curves, integer, list_of, real, record, text
from ..runtime.options import options
from ..runtime.progress import progress_bar
from ..runtime.tensor_files import by_prefix, check_like, fingerprint, reading

CHECKPOINT = "estimator checkpoint"
_BLOCK = 64
_RECORDS = 50
_CURVES = ("updates", "seconds", "loss")


class Batches:
    """Rows of each mini-batch, which depend only on the seed and the update.

    Args:
        pools: Rows that each of M members samples from.
        size: B, rows per member.
        seed: Seed of the samples.
        device: Device of the rows.
    """

    def __init__(self, pools: list[np.ndarray], size: int, seed: int, device: torch.device | str):
        self.pools, self.size, self.seed, self.device = pools, size, seed, device
        self._block: tuple[int, Tensor] | None = None

    def __call__(self, update: int) -> Tensor:
        """Return the rows (M, B) int64 of an update."""
        block, place = divmod(update, _BLOCK)
        if self._block is None or self._block[0] != block:
            random = np.random.default_rng([self.seed, 1, block])
            drawn = [pool[random.integers(0, len(pool), (_BLOCK, self.size))] for pool in self.pools]
            self._block = block, torch.from_numpy(np.stack(drawn, 1)).to(self.device)
        return self._block[1][place]


class Learner(ABC):
    """Networks, their optimizers, and one update of them.

    Attributes:
        trained: Tensors by name that training changes, except those of the optimizers.
        optimizers: Optimizers by name.
    """

    trained: dict[str, Tensor]
    optimizers: dict[str, Adam]

    @abstractmethod
    def step(self, update: int) -> Tensor:
        """Update the networks once and return their losses, one-dimensional and detached."""

    def progress(self) -> dict[str, str]:
        """Return what the bar shows next to the loss."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a checkpoint needs, by name."""
        tensors = {f"trained.{name}": value.detach() for name, value in self.trained.items()}
        for name, optimizer in self.optimizers.items():
            tensors |= optimizer.tensors(name)
        return tensors

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `tensors` returned."""
        check_like(by_prefix(tensors, "trained")[0], self.trained)
        for name, value in self.trained.items():
            value.copy_(tensors[f"trained.{name}"])
        for name, optimizer in self.optimizers.items():
            optimizer.restore(tensors, name)


def learn(
    learner: Learner,
    updates: int,
    *,
    description: str,
    watch: Callable[[], list[float]] | None = None,
    checkpoint: str | os.PathLike | None = None,
    identity: Callable[[], Iterable[Any]] = tuple,
) -> dict[str, list]:
    """Train to a number of updates.

    Args:
        learner: Networks to train.
        updates: Number of updates.
        description: Name of the training in messages and progress bars.
        watch: Function that returns values to record, or None.
        checkpoint: File to resume from if it exists, and to write during training; None for none.
        identity: Function that returns what distinguishes this run from others.

    Returns:
        Curves with about 50 records: "updates", "seconds", "loss" (mean since the last record) and, with `watch`,
        "values". In a resumed run, earlier values are NaN if `watch` returns others than the interrupted run recorded.

    Raises:
        FloatingPointError: The loss is no longer finite.
        OSError: The checkpoint cannot be written.
        ValueError: The checkpoint is damaged or belongs to another run.
    """
    file = Checkpoint(checkpoint, CHECKPOINT, "transitions")
    history: dict[str, list] = {"updates": [], "seconds": [], "loss": [], **({"values": []} if watch else {})}
    if checkpoint is not None:
        file.identify(fingerprint(*identity()))
    if (state := file.load()) is not None:
        tensors, values = state
        with reading(checkpoint):
            history = _to_history(record({"fingerprint": list_of(text), "history": curves})("checkpoint", values))
            learner.restore(tensors)
        _check_values(history, watch)
    done = history["updates"][-1] if history["updates"] else 0
    earlier = history["seconds"][-1] if history["seconds"] else 0.0
    every = max(1, updates // _RECORDS)
    total: Any = 0.0
    begun = time.monotonic()
    with progress_bar(updates, description, "update", initial=done) as bar, file.training():
        for update in range(done, updates):
            total = total + learner.step(update)
            bar.update()
            if (update + 1) % every and update + 1 < updates:
                continue
            loss = total / (update + 1 - done)
            done, total = update + 1, 0.0
            if not loss.isfinite().all():
                raise FloatingPointError(
                    f"{description}: the loss is not finite after {done} updates; lower the learning rate"
                )
            history["updates"].append(done)
            history["seconds"].append(earlier + time.monotonic() - begun)
            history["loss"].append(loss.tolist())
            if watch is not None:
                history["values"].append(_quietly(watch))
            bar.set_postfix({"loss": f"{float(loss.mean()):.3g}", **learner.progress()}, refresh=False)
            file.keep(
                learner.tensors(),
                {"history": history},
                progress=f"{done} of {updates} updates",
                last=update + 1 == updates,
            )
    return history


def _to_history(values: dict[str, Any]) -> dict[str, list]:
    """Return the curves of a checkpoint, checked against each other.

    Raises:
        ValueError: A curve is missing or of another length, or holds other values than `learn` writes.
    """
    history = values["history"]
    if not {*_CURVES} <= {*history} <= {*_CURVES, "values"} or len({len(points) for points in history.values()}) > 1:
        raise ValueError(f"history must have curves {', '.join(_CURVES)} of one length")
    if not history["updates"]:
        raise ValueError("history has no records")
    list_of(integer(1))("updates", history["updates"])
    list_of(real)("seconds", history["seconds"])
    list_of(list_of(any_number))("values", history.get("values", []))
    return history


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean (C,) of values (C, B) where the mask (C, B) is True, or of all values; 0 if no value counts."""
    if mask is None:
        return values.mean(1)
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


def _quietly(watch: Callable[[], list[float]]) -> list[float]:
    with options(progress=False):
        return watch()


def _check_values(history: dict[str, list], watch: Callable[[], list[float]] | None) -> None:
    """Replace the recorded values by NaN if the last ones are not what `watch` returns for the restored networks."""
    if watch is None:
        history.pop("values", None)
        return
    *before, last = history.get("values", [[]] * len(history["updates"]))
    current = _quietly(watch)
    if len(last) != len(current) or not np.allclose(last, current):
        history["values"] = [[math.nan] * len(current) for _ in before] + [current]
