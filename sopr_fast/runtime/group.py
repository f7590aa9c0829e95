"""A group of processes that exchange tensors, values and errors.

All processes make the same calls in the same order. A small message precedes each exchange of data. It holds sizes, and
whether a process failed, so that no process waits for one that raised an error.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from . import told
from .blocks import add_up, largest_subtrees
from .signals import without_interrupts

_T = TypeVar("_T")
_FINE, _FAILED = 0, 1
_WHOLE = 1 << 14  # elements of a sum up to which each process adds up everything, in one exchange instead of two
_KINDS: tuple[type[BaseException], ...] = (
    FileNotFoundError,
    OSError,
    MemoryError,
    ImportError,
    FloatingPointError,
    TypeError,
    ValueError,
    RuntimeError,
    KeyboardInterrupt,
)


def watch(name: str, sent: int) -> contextlib.AbstractContextManager[None]:
    """Return a context around an exchange that sends so many bytes; measurements replace this function."""
    return contextlib.nullcontext()


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
        return self._part(total, self.rank)

    def _part(self, total: int, rank: int) -> slice:
        return slice(total * rank // self.count, total * (rank + 1) // self.count)

    def gather(self, own: Tensor) -> Tensor:
        """Return the rows of all processes, in the order of the processes.

        Args:
            own: (n, ...) rows of this process; n may be 0.
        """
        return own if self.count == 1 else torch.cat(self._exchange("gather", own))

    def gather_among(self, team: range, own: Tensor) -> Tensor:
        """Return the rows of the processes of a team, in their order; nothing is sent to other teams.

        Args:
            team: Numbers of adjacent processes, this one among them. All processes of a team name the same.
            own: (n, ...) rows of this process; n may be 0.
        """
        if self.count == 1:
            return own
        sent = own.detach().cpu().contiguous()
        with self._exchanging("team", sent.nbytes * (len(team) - 1), len(own)) as sizes:
            received = sent.new_empty(sum(sizes[team.start : team.stop]), *sent.shape[1:])
            works: list[Any] = []
            for rank, rows in zip(team, received.split(sizes[team.start : team.stop]), strict=True):
                if rank == self.rank:
                    rows.copy_(sent)
                    continue
                if rows.numel():
                    works.append(dist.irecv(rows, rank, group=self._processes))
                if sent.numel():
                    works.append(dist.isend(sent, rank, group=self._processes))
            for work in works:
                work.wait()
        return received.to(own.device)

    def sum_blocks(self, blocks: int, block: Callable[[int], Tensor]) -> Tensor:
        """Return the sum of equally shaped tensors of all blocks: the same bits for any number of processes.

        The order of the additions is that of a binary tree over the blocks. A process adds up the whole subtrees among
        its blocks; then each process adds up those of all processes for its part of the elements.

        Args:
            blocks: Number of blocks, of which this process computes `part(blocks)`.
            block: Function that returns the tensor of one block; called once for each, in order.
        """
        if self.count == 1:
            return add_up(0, blocks, block)
        parts = [self._part(blocks, rank) for rank in range(self.count)]
        subtrees = [list(largest_subtrees(0, blocks, part)) for part in parts]
        sums = [add_up(first, last, block) for first, last in subtrees[self.rank]]
        like = sums[0] if blocks >= self.count else self.like(sums[0] if sums else None)
        own = torch.stack(sums).flatten(1) if sums else like.new_empty(0, like.numel())
        if like.numel() <= _WHOLE:
            total = self._add_subtrees(blocks, subtrees, self._exchange("sum", own))
        else:
            pieces = self._scatter(own, [len(each) for each in subtrees])
            total = torch.cat(self._exchange("pieces", self._add_subtrees(blocks, subtrees, pieces)))
        return total.view(like.shape)

    def _add_subtrees(self, blocks: int, subtrees: list[list[tuple[int, int]]], sums: list[Tensor]) -> Tensor:
        """Return the sum of all blocks from the sums of the subtrees of each process."""
        ready = dict(zip(itertools.chain(*subtrees), itertools.chain(*sums), strict=True))

        def add(first: int, last: int) -> Tensor:
            if (first, last) in ready:
                return ready[first, last]
            middle = (first + last) // 2
            return add(first, middle) + add(middle, last)

        return add(0, blocks)

    def like(self, own: Tensor | None) -> Tensor:
        """Return this process's tensor, or an uninitialised one on the CPU of the shape and dtype that others have."""
        shapes = self._objects(None if own is None else [list(own.shape), str(own.dtype).removeprefix("torch.")])
        shape, dtype = next(each for each in shapes if each is not None)
        if own is not None:
            return own
        return torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")

    def _scatter(self, own: Tensor, counts: list[int]) -> list[Tensor]:
        """Return this process's part of the columns of the rows (counts[r], E) of every process r."""
        width = own.shape[1]
        parts = [self._part(width, rank) for rank in range(self.count)]
        mine = parts[self.rank].stop - parts[self.rank].start
        sent = torch.cat([own[:, part].flatten() for part in parts]).cpu()
        sizes = [len(own) * (part.stop - part.start) for part in parts]
        with self._exchanging("scatter", sent.numel() * sent.element_size() - sizes[self.rank] * sent.element_size()):
            received = sent.new_empty(mine * sum(counts))
            dist.all_to_all_single(received, sent, [mine * count for count in counts], sizes, group=self._processes)
        pieces = received.to(own.device).split([mine * count for count in counts])
        return [piece.view(count, mine) for piece, count in zip(pieces, counts, strict=True)]

    def from_first(self, value: Callable[[], _T]) -> _T:
        """Return what the function returns in process 0; other processes do not call it."""
        if self.count == 1:
            return value()
        made = [value() if self.rank == 0 else None]
        with self._exchanging("broadcast", 0):
            dist.broadcast_object_list(made, 0, self._processes)  # pickled, between processes of one program
        return made[0]  # type: ignore[return-value]

    def check_same(self, remedy: str = "start all with the same files and options", **parts: Any) -> None:
        """Check that values, which JSON can hold, are equal in all processes.

        Raises:
            ValueError: A process has another value; the message names it.
        """
        if self.count == 1:
            return
        everyone = self._objects({name: str(value) for name, value in parts.items()})
        for rank, values in enumerate(everyone):
            for name, value in everyone[0].items():
                if values.get(name) != value:
                    shown = f" ({values.get(name)}, not {value})" if len(value) < 40 else ""
                    raise ValueError(
                        f"process {rank} has other {name.replace('_', ' ')} than process 0{shown}: {remedy}"
                    )

    def everyone(self, value: Any) -> list[Any]:
        """Return the values of all processes, which JSON can hold."""
        return [value] if self.count == 1 else self._objects(value)

    def _objects(self, value: Any) -> list[Any]:
        encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(bytes(each.tolist())) for each in self._exchange("values", encoded)]

    def _exchange(self, name: str, own: Tensor) -> list[Tensor]:
        """Return the rows of every process; they may differ in number."""
        sent = own.detach().cpu().contiguous()
        with self._exchanging(name, sent.nbytes * (self.count - 1), len(own)) as sizes:
            longest = max(sizes)
            if len(sent) < longest:
                sent = torch.cat([sent, sent.new_zeros(longest - len(sent), *sent.shape[1:])])
            received = [torch.empty_like(sent) for _ in sizes]
            if sent.numel():
                dist.all_gather(received, sent, group=self._processes)
        return [rows[:size].to(own.device) for rows, size in zip(received, sizes, strict=True)]

    @contextlib.contextmanager
    def _exchanging(self, name: str, sent: int, size: int = 0) -> Iterator[list[int]]:
        """Exchange headers, then run the block; yield the size that each process announced."""
        with watch(name, sent), without_interrupts():
            try:
                sizes = self._headers(_FINE, name, size)
                yield sizes
            except RuntimeError as error:
                if told.is_told(error):
                    raise
                lost = f"a process of the group has ended or cannot be reached ({told.reason(error)})"
                lost = f"{lost}: start all again, with a checkpoint to resume"
                raise told.mark(told.LostProcessError(lost), told.first_to_tell(self.rank)) from error

    def _headers(self, status: int, name: str, size: int) -> list[int]:
        """Return the sizes of all processes, or raise the error of the first one that failed."""
        own = torch.tensor([status, zlib.crc32(name.encode()), size], device="cpu")
        headers = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(headers, own, group=self._processes)
        statuses, names, sizes = torch.stack(headers).T.tolist()
        if any(statuses):
            self._raise_first(statuses, sizes)
        if len(set(names)) > 1:
            self._settle()
            error = RuntimeError("processes make different calls: make the same calls of sopr_fast in all of them")
            raise told.mark(error, 0)
        return sizes

    def _raise_first(self, statuses: list[int], sizes: list[int], own: bytes = b"") -> None:
        longest = max(size for size, status in zip(sizes, statuses, strict=True) if status == _FAILED)
        texts = [torch.zeros(longest, dtype=torch.uint8, device="cpu") for _ in statuses]
        text = torch.zeros_like(texts[0])
        if own:
            text[: len(own)] = torch.frombuffer(bytearray(own), dtype=torch.uint8)
        dist.all_gather(texts, text, group=self._processes)
        self._settle()
        first = statuses.index(_FAILED)
        kind, message = json.loads(bytes(texts[first][: sizes[first]].tolist()))
        known = {each.__name__: each for each in _KINDS}
        teller = 0 if kind == "KeyboardInterrupt" else first  # process 0 knows the checkpoint
        raise told.mark(known.get(kind, RuntimeError)(f"process {first}: {message}"), teller)

    def _settle(self) -> None:
        """Wait until all processes have received what was exchanged last.

        A process that leaves resets its connections (gloo's `Pair::close`), so that data under way is lost. The zeros
        exchanged here may be lost.
        """
        own = torch.zeros(1, device="cpu")
        with contextlib.suppress(RuntimeError):
            dist.all_gather([torch.empty_like(own) for _ in range(self.count)], own, group=self._processes)

    def end(self) -> None:
        """Wait until all processes have done their work; one that is lost here may have left."""
        with contextlib.suppress(told.LostProcessError), self._exchanging("end", 0):
            pass

    def tell(self, error: BaseException) -> None:
        """Tell all other processes of an error, which they raise when they next exchange something."""
        kind = next((kind.__name__ for kind in _KINDS if isinstance(error, kind)), "RuntimeError")
        text = json.dumps([kind, str(error) or type(error).__name__]).encode()
        own = torch.tensor([_FAILED, 0, len(text)], device="cpu")
        headers = [torch.empty_like(own) for _ in range(self.count)]
        with without_interrupts():
            try:
                dist.all_gather(headers, own, group=self._processes)
                statuses, _, sizes = torch.stack(headers).T.tolist()
                self._raise_first(statuses, sizes, text)
            except BaseException as first:
                process = told.told_by(first)
                told.mark(error, told.first_to_tell(self.rank) if process is None else process)
