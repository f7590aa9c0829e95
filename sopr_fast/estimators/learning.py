"""The training loop of all networks of the estimators."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..native import torch_on_one_thread
from ..runtime.checkpoints import Checkpoint
from ..runtime.progress import progress_bar
from ..runtime.tensor_files import fingerprint, reading, restore
from .log import Log
from .networks import StackedMLP

CHECKPOINT = "estimator checkpoint"
_BLOCK = 64
_RECORDS = 50
_HELD_OUT = 0.05  # share of the episodes


@dataclass
class Batches:
    """Rows of each mini-batch, which depend only on the seed and the update; each of M members has a pool of rows."""

    pools: list[np.ndarray]
    size: int
    seed: int
    _block: tuple[int, Tensor] | None = None

    def __call__(self, update: int) -> Tensor:
        """Return the rows (M, B) int64 of an update."""
        block, place = divmod(update, _BLOCK)
        if self._block is None or self._block[0] != block:
            random = np.random.default_rng([self.seed, 1, block])
            drawn = [pool[random.integers(0, len(pool), (_BLOCK, self.size))] for pool in self.pools]
            self._block = block, torch.from_numpy(np.stack(drawn, 1))
        return self._block[1][place]


class Learner(ABC):
    """Networks that are trained together.

    Attributes:
        networks: Networks by name.
    """

    networks: dict[str, StackedMLP]

    @abstractmethod
    def step(self, update: int) -> Tensor:
        """Update the networks once and return their losses, one-dimensional and detached."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that training changes, by name."""
        parts = {name: network.tensors() for name, network in self.networks.items()}
        return {f"{name}.{part}": tensor for name, own in parts.items() for part, tensor in own.items()}


def learn(
    learner: Learner,
    updates: int,
    description: str,
    checkpoint: str | os.PathLike | None = None,
    identity: Callable[[], Iterable[Any]] = tuple,
) -> dict[str, list]:
    """Train to a number of updates, and return about 50 records: "updates", and "loss", the means since the last one.

    A run resumes from its checkpoint if that exists, and writes it. ValueError is raised if it is of another run:
    `identity` returns what distinguishes runs. FloatingPointError is raised if the loss is not finite.
    """
    every = max(1, updates // _RECORDS)
    records = [*range(every, updates, every), updates]  # updates after which the loss is recorded
    file, losses = Checkpoint(checkpoint, CHECKPOINT, "transitions"), []
    if checkpoint is not None:
        file.identify(fingerprint(*identity()))
    if (state := file.load()) is not None:
        tensors, values = state
        with reading(checkpoint):
            losses = values["losses"]
            restore(learner.tensors(), tensors)
    done = records[len(losses) - 1] if losses else 0
    # Next to the kernels' threads, torch's would only wait for each other on operators as small as these.
    with torch_on_one_thread(), progress_bar(updates, description, "update", initial=done) as bar, file.training():
        for end in records[len(losses) :]:
            total: Any = 0.0
            for update in range(done, end):
                total = total + learner.step(update)
                bar.update()
            loss, done = total / (end - done), end
            if not loss.isfinite().all():
                raise FloatingPointError(
                    f"{description}: the loss is not finite after {done} updates; lower the learning rate"
                )
            losses.append(loss.tolist())
            bar.set_postfix({"loss": f"{float(loss.mean()):.3g}"}, refresh=False)
            progress = f"{done} of {updates} updates"
            file.keep(learner.tensors(), {"losses": losses}, progress=progress, last=done == updates)
    return {"updates": records, "loss": losses}


def held_out_rows(log: Log, seed: int) -> np.ndarray:
    """Return rows that are held out of training: those of one episode in 20, and at least of one.

    If these are more than a tenth of all rows, only the last ones are held out, a twentieth of all rows.
    """
    if log.count == 1:
        raise ValueError("log: one row is too few, because some rows are held out of training; pass more rows")
    episodes = log.transitions.episodes
    count = len(episodes) - 1
    chosen = np.random.default_rng([seed, 3]).permutation(count)[: max(1, int(_HELD_OUT * count))]
    rows = np.concatenate([np.arange(episodes[e], episodes[e + 1]) for e in np.sort(chosen)])
    return rows if len(rows) <= 2 * _HELD_OUT * log.count else rows[-max(1, int(_HELD_OUT * log.count)) :]
