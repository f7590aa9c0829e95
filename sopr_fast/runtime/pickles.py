"""Plain values from pickles and torch's files, which a child process parses: see `pickle_parser`.

Files of any origin can hang, crash or exhaust a parser. There, that becomes an error with a reason.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .files import open_regular
from .pickle_parser import FRAME, Record, RefusedError

if TYPE_CHECKING:
    import torch

__all__ = ["SB3_RECORDS", "SPACE_RECORDS", "Record", "RefusedError", "read_pickle", "read_weights"]

# Prefixes of full names, for `records` of `read_pickle`.
SB3_RECORDS = ("stable_baselines3.", "sb3_contrib.")
SPACE_RECORDS = ("gymnasium.spaces.", "gym.spaces.", "gym.utils.seeding.", "numpy.random.")

_DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")
_COMPLEX = ("complex64", "complex128")
_TORCH_RECORDS = (
    "tianshou.utils.statistics.RunningMeanStd",
    "torch.device",
    *(f"torch.{dtype}" for dtype in (*_DTYPES, *_COMPLEX)),
)
_MEMORY, _COPIES = 256 << 20, 12  # bytes of memory, and more of them for each byte of the file
_PIECE = 1 << 20  # bytes sent at a time
_SECONDS, _RATE = 2, 2 << 20  # seconds of processor time; bytes of the file for each second more


def read_pickle(source: Path | BinaryIO | bytes, *, records: tuple[str, ...] = ()) -> Any:
    """Return the value of a pickle: numbers, text, arrays, and lists, tuples and dicts of them.

    Args:
        source: Path, open file, or content.
        records: Full names, or prefixes of them that end with a dot. Instances of such classes, and results of such
            functions, become `Record`s.

    Raises:
        RefusedError: The pickle names another global, or its values are far larger than the file.
        ValueError: The pickle is damaged, or its parser took too much time or memory.
    """
    return _parser.ask("pickle", source, records)


def read_weights(source: Path | BinaryIO | bytes) -> Any:
    """Return what `torch.save` wrote: the same with tensors; see `read_pickle`.

    Raises:
        RefusedError: The file is also a program.
    """
    return _parser.ask("torch", source, _TORCH_RECORDS)


class _Parser:
    """The child process, which starts with the first file, lives as long as this process, and is used by one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, kind: str, source: Path | BinaryIO | bytes, records: tuple[str, ...]) -> Any:
        """Return the value in a file, or in its content."""
        with _opened(source) as file, self._lock:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            memory, seconds = _MEMORY + _COPIES * size, _SECONDS + size // _RATE
            header = json.dumps({"kind": kind, "records": records, "memory": memory, "seconds": seconds}).encode()
            process = self._started()
            try:
                request = itertools.chain([FRAME.pack(len(header), size), header], _pieces(file, size))
                answer, data = _exchange(process, request, memory)
            except (EOFError, BrokenPipeError):
                answer, data = {"ended": process.wait()}, np.empty(0, np.uint8)
                self.stop()
            except BaseException:  # the rest of the answer would be taken for that of the next file
                self.stop()
                raise
        return _result(answer, data, memory, seconds)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            program = Path(__file__).with_name("pickle_parser.py")
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pipesize=_PIECE,  # ignored if pipes have one size
                bufsize=0,  # a fork of this process would write a buffer again
                start_new_session=True,  # Ctrl-C is for this process
            )
        return self._process

    def stop(self) -> None:
        """End the child process."""
        if self._process is not None:
            with contextlib.suppress(OSError):  # it has ended
                os.killpg(self._process.pid, signal.SIGKILL)
            for stream in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            self._process.wait()
            self._process = None

    def end(self) -> None:
        """End the child process for good, unless a daemon thread waits for it; it ends with this process then."""
        if self._lock.acquire(blocking=False):
            self.stop()

    def forget(self) -> None:
        """Leave the child process to the process that started it, of which this is a fork."""
        if self._process is not None:
            self._process.returncode = 0
        self.__init__()  # type: ignore[misc]


_parser = _Parser()
atexit.register(_parser.end)
os.register_at_fork(after_in_child=_parser.forget)


def _opened(source: Path | BinaryIO | bytes) -> contextlib.AbstractContextManager[BinaryIO]:
    if isinstance(source, Path):
        return open_regular(source)
    return contextlib.nullcontext(io.BytesIO(source) if isinstance(source, bytes) else source)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the content of a file, which is never in memory as a whole."""
    while size:
        piece = file.read(min(size, _PIECE))
        if not piece:
            raise ValueError("cut short while it was read")
        size -= len(piece)
        yield piece


def _exchange(process: Any, request: Iterable[bytes], most: int) -> tuple[dict[str, Any], np.ndarray]:
    for part in request:
        view = memoryview(part)
        while view:
            view = view[process.stdin.write(view) :]
    lengths = FRAME.unpack(_exactly(process.stdout, FRAME.size).tobytes())
    if max(lengths) > most:
        raise ValueError("its parser gave an answer that is too large")
    text, data = (_exactly(process.stdout, length) for length in lengths)
    return json.loads(text.tobytes()), data


def _exactly(stream: Any, count: int) -> np.ndarray:
    data = np.empty(count, np.uint8)
    view = memoryview(data.data)
    while view:
        read = stream.readinto(view)
        if not read:
            raise EOFError
        view = view[read:]
    return data


def _result(answer: dict[str, Any], data: np.ndarray, memory: int, seconds: int) -> Any:
    if "value" in answer:
        try:
            return _decode(answer["value"], data)
        except (IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"damaged ({type(error).__name__}: {error})") from error
    if "refused" in answer:
        raise RefusedError(answer["refused"])
    if "damaged" in answer:
        raise ValueError(f"damaged ({answer['damaged']})")
    if answer.get("ended") == signal.SIGXCPU:
        raise ValueError(f"it takes more than {seconds} s to parse, far more than its size explains")
    if "memory" in answer:
        raise ValueError(f"it takes more than {memory >> 20} MiB to parse, far more than its size explains")
    raise ValueError(f"its parser ended with status {answer['ended']}")


def _decode(node: Any, data: np.ndarray) -> Any:
    """Return the value that the JSON of `pickle_parser` describes."""
    if not isinstance(node, list):
        return node
    kind, *parts = node
    match kind:
        case "list":
            return [_decode(part, data) for part in parts]
        case "tuple":
            return tuple(_decode(part, data) for part in parts)
        case "dict":
            values = [_decode(part, data) for part in parts]
            return dict(zip(values[::2], values[1::2], strict=True))
        case "bytes":
            return data[parts[0] :][: parts[1]].tobytes()
        case "dtype":
            return np.dtype(parts[0])
        case "array":
            return _array(data, *parts)
        case "tensor":
            return _tensor(data, *parts)
        case "record":
            record = _record(parts[0])()
            record.__dict__.update(_decode(parts[1], data))
            return record
        case "class":
            return _record(parts[0])
    raise ValueError(f"unknown kind {kind!r}")


@functools.cache
def _record(source: str) -> type[Record]:
    return type("Record", (Record,), {"source": source})


def _array(data: np.ndarray, dtype: str, shape: list[int] | None, order: Any, place: int, length: int) -> Any:
    array = data[place : place + length].view(np.dtype(dtype)).reshape(shape or (), order=order)
    return array[()] if shape is None else array


def _tensor(
    data: np.ndarray, dtype: str, shape: list[int], strides: list[int], offset: int, place: int, length: int
) -> torch.Tensor:
    if dtype not in (*_DTYPES, *_COMPLEX):
        raise ValueError(f"a tensor of {dtype}")
    import torch

    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind, device="cpu")
    return torch.from_numpy(data[place : place + length]).view(kind).as_strided(shape, strides, offset)
