"""A group of processes that share work: each makes the same calls in the same order."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from .blocks import add_up, largest_subtrees

_T = TypeVar("_T")


class LostProcessError(RuntimeError):
    """A process of the group has ended, or cannot be reached."""


class Group:
    """Processes that share the work of each call.

    Args:
        rank: Number of this process.
        count: Number of processes.
        processes: Group of `torch.distributed` that exchanges tensors on the CPU; None for the default group.
    """

    def __init__(self, rank: int = 0, count: int = 1, processes: Any = None) -> None:
        self.rank, self.count, self._processes = rank, count, processes

    def part(self, total: int) -> slice:
        """Return this process's part of `total` items: adjacent ones, nearly as many as every other process."""
        return slice(total * self.rank // self.count, total * (self.rank + 1) // self.count)

    def gather_objects(self, value: _T) -> list[_T]:
        """Return the values of all processes, in the order of the processes.

        Raises:
            LostProcessError: A process has ended.
        """
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with _reaching():
            dist.all_gather_object(values, value, group=self._processes)  # pickled, between processes of one program
        return values

    def gather(self, own: Tensor) -> Tensor:
        """Return the rows of all processes, in the order of the processes.

        Args:
            own: (n, ...) rows of this process; n may be 0.
        """
        if self.count == 1:
            return own
        rows = np.concatenate(self.gather_objects(own.detach().cpu().numpy()))
        return torch.from_numpy(rows).to(own.device)

    def sum_blocks(self, blocks: int, block: Callable[[int], Tensor]) -> Tensor:
        """Return the sum of equally shaped tensors of all blocks: the same bits for any number of processes.

        The order of the additions is that of a binary tree over the blocks. A process adds up the whole subtrees among
        its blocks; then every process adds up the subtrees of all.

        Args:
            blocks: Number of blocks, of which this process computes `part(blocks)`.
            block: Function that returns the tensor of one block; called once for each, in order.
        """
        if self.count == 1:
            return add_up(0, blocks, block)
        own = [add_up(*tree, block) for tree in largest_subtrees(0, blocks, self.part(blocks))]
        sums = [each for process in self.gather_objects([each.cpu().numpy() for each in own]) for each in process]
        parts = (Group(rank, self.count).part(blocks) for rank in range(self.count))
        trees = [tree for part in parts for tree in largest_subtrees(0, blocks, part)]
        ready = dict(zip(trees, map(torch.from_numpy, sums), strict=True))

        def add(first: int, last: int) -> Tensor:
            if (first, last) in ready:
                return ready[first, last]
            middle = (first + last) // 2
            return add(first, middle) + add(middle, last)

        return add(0, blocks)

    def from_first(self, value: Callable[[], _T]) -> _T:
        """Return what the function returns in process 0; other processes do not call it."""
        return self.gather_objects(value() if self.rank == 0 else None)[0]  # type: ignore[return-value]

    def check_same(self, **parts: Any) -> None:
        """Check that arrays, tensors and other values are equal in all processes.

        Raises:
            ValueError: A process has another value than process 0; the message names it.
        """
        if self.count == 1:
            return
        first, *others = self.gather_objects({name: _digest(value) for name, value in parts.items()})
        for rank, values in enumerate(others, 1):
            for name, value in first.items():
                if values[name] != value:
                    raise ValueError(
                        f"process {rank} has other {name.replace('_', ' ')} than process 0: start all with the same "
                        "files and options"
                    )


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    """Name the remedy if a process of the group has ended."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of the group has ended, see its error: start all again, with a checkpoint to resume"
        ) from error


def _digest(value: Any) -> str:
    if isinstance(value, np.ndarray | Tensor):
        array = np.ascontiguousarray(value.cpu() if isinstance(value, Tensor) else value)
        return f"{array.shape} {array.dtype} {hashlib.sha256(array.data).hexdigest()}"
    return repr(value)
