"""The processes of `torch.distributed` that share work: each makes the same calls in the same order."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from .tensor_files import fingerprint

_T = TypeVar("_T")
_BLOCK = 8  # policies
_SECONDS = 0.1


class LostProcessError(RuntimeError):
    """A process of the group has ended, or cannot be reached."""


class Group:
    """Processes that share the work of each call: the number of this one, and how many there are."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    def part(self, total: int) -> slice:
        """Return this process's part of `total` items: adjacent ones, nearly as many as every other process."""
        return slice(total * self.rank // self.count, total * (self.rank + 1) // self.count)

    def policies(self, count: int) -> slice:
        """Return which of so many policies are in this process's blocks, see `block_bounds`."""
        bounds = block_bounds(count)
        own = self.part(len(bounds) - 1)
        return slice(bounds[own.start], bounds[own.stop])

    def gather_objects(self, value: _T) -> list[_T]:
        """Return the values of all processes, in the order of the processes, or raise LostProcessError."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        try:
            dist.all_gather_object(values, value)  # pickled, between processes of one program
        except RuntimeError as error:
            raise LostProcessError(
                "another process of the group has ended, see its error: start all again, with a checkpoint to resume"
            ) from error
        return values

    def gather(self, own: Tensor) -> Tensor:
        """Return the rows of all processes, in the order of the processes, from those of this one: (n, ...), n ≥ 0."""
        if self.count == 1:
            return own
        rows = np.concatenate(self.gather_objects(own.detach().cpu().numpy()))
        return torch.from_numpy(rows).to(own.device)

    def sum_blocks(self, blocks: int, own: Tensor) -> Tensor:
        """Return the sum over blocks from this process's tensors, (b, ...): the same bits for any number of processes.

        These are the blocks `part(blocks)`, which may be none.
        """
        place = self.part(blocks)
        sums = add_up(0, blocks, {(i, i + 1): one for i, one in zip(range(place.start, place.stop), own, strict=True)})
        if self.count > 1:
            gathered = self.gather_objects({tree: one.cpu().numpy() for tree, one in sums.items()})
            everyone = {tree: torch.from_numpy(one) for process in gathered for tree, one in process.items()}
            sums = add_up(0, blocks, everyone)
        return sums[0, blocks].to(own.device)

    def check_same(self, **parts: Any) -> None:
        """Raise ValueError if a process has another array, tensor or value than process 0."""
        if self.count == 1:
            return
        first, *others = self.gather_objects({name: fingerprint(value) for name, value in parts.items()})
        for rank, values in enumerate(others, 1):
            for name in first:
                if values[name] != first[name]:
                    raise ValueError(
                        f"process {rank} has other {name.replace('_', ' ')} than process 0: start all with the same "
                        "files and options"
                    )


def block_bounds(policies: int) -> list[int]:
    """Return where blocks of policies begin and end: a fixed partition, whatever processes compute them.

    Blocks hold 8 policies or a few less; their number is even, so that two processes share equally.
    """
    count = 2 * max(1, -(-policies // (2 * _BLOCK)))
    return [policies * block // count for block in range(count + 1)]


def add_up(first: int, last: int, sums: dict[tuple[int, int], Tensor]) -> dict[tuple[int, int], Tensor]:
    """Return sums over blocks, by first block and end, with whole subtrees of a binary tree added up: a fixed order."""
    if (first, last) in sums:
        return {(first, last): sums[first, last]}
    if last - first < 2:
        return {}
    middle = (first + last) // 2
    halves = add_up(first, middle, sums) | add_up(middle, last, sums)
    if halves.keys() == {(first, middle), (middle, last)}:
        return {(first, last): halves[first, middle] + halves[middle, last]}
    return halves


def current() -> Group:
    """Return the group of `torch.distributed`, which must exchange tensors on the CPU, or one of only this process."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Group()
    if "cpu:gloo" not in dist.get_backend_config():
        raise ValueError("processes exchange results through gloo: call init_process_group('cpu:gloo,cuda:nccl')")
    return Group(dist.get_rank(), dist.get_world_size())


def start() -> None:
    """Initialise the group of the processes that `torchrun` started, or raise RuntimeError with a remedy."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    try:
        dist.init_process_group("gloo")
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"processes cannot reach each other: {str(error).splitlines()[0]}; on one machine without a network, set "
            "GLOO_SOCKET_IFNAME=lo"
        ) from error


def stop() -> None:
    """Leave the group once all processes have done their work."""
    with contextlib.suppress(LostProcessError):  # one that has done its work may have left
        current().gather_objects(None)
    time.sleep(_SECONDS)  # torch 2.6 waits forever if a thread of it has not freed the last tensor
    dist.destroy_process_group()
