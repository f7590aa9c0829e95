"""Weights and other plain values from files of `torch.save`, of any origin."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from .containers import Archive, open_archive
from .files import open_regular, opened, size_of
from .pickles import MOST_DEPTH, REFUSAL, Made, PlainUnpickler, Record, RefusedError

_STORAGES = {
    f"torch.{kind}Storage": dtype
    for kind, dtype in {
        "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
        "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
    }.items()
}  # fmt: skip
_RECORDS = ("torch.device", *_STORAGES, *map(str, _STORAGES.values()))
_STORAGE = "storage"  # name of what persistent identifiers make
_ZIP, _HEAD = b"PK\x03\x04", 20  # first bytes
_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")  # of torch.save before 1.6


class _Storage(NamedTuple):
    dtype: torch.dtype
    key: str


class _TorchUnpickler(PlainUnpickler):
    """Unpickler of tensors, too; `member` returns the bytes of a storage by its key."""

    def __init__(self, stream: Any, size: int, member: Callable[[str], bytes]) -> None:
        super().__init__(stream, size, _RECORDS)
        self._member, self._tensors = member, dict[str, Tensor]()
        self.names |= {
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_parameter": lambda state, data, *_: data,
            "torch.Size": lambda state, sizes: sizes,
            _STORAGE: _storage,
        }

    def persistent_load(self, pid: Any) -> Made:
        return Made(_STORAGE, (pid,))

    def _tensor(
        self, state: Any, storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
    ) -> Tensor:
        is_whole = isinstance(storage, _Storage) and len(shape) == len(strides) <= MOST_DEPTH
        if not is_whole or not all(type(n) is int and 0 <= n < 2**62 for n in (offset, *shape, *strides)):
            raise RefusedError(f"its pickle has a tensor of another kind; {REFUSAL}")
        self.count(math.prod(shape) * storage.dtype.itemsize)
        if 0 in shape:
            return torch.empty(shape, dtype=storage.dtype, device="cpu")
        if storage.key not in self._tensors:
            self._tensors[storage.key] = torch.frombuffer(bytearray(self._member(storage.key)), dtype=storage.dtype)
        return self._tensors[storage.key].as_strided(shape, strides, offset)


def _storage(state: Any, pid: Any) -> _Storage:
    """Return the storage of a tensor; `pid` is what torch writes of it."""
    is_storage = type(pid) is tuple and len(pid) == 5 and isinstance(pid[1], Record) and type(pid[2]) is str
    if not is_storage or pid[1].source not in _STORAGES:
        raise RefusedError(f"its pickle has a tensor of another kind; {REFUSAL}")
    return _Storage(_STORAGES[pid[1].source], pid[2])


def is_torch_file(path: Path) -> bool:
    """Return whether a file begins as one that `torch.save` wrote."""
    with open_regular(path) as file:
        head = file.read(_HEAD)
    return head.startswith(_ZIP) or _MAGIC in head


def read_weights(source: Path | BinaryIO | bytes) -> Any:
    """Return what `torch.save` wrote: values, and errors, as of `read_pickle`, and tensors."""
    with opened(source) as stream:
        size, head = size_of(stream), stream.read(_HEAD)
        if _MAGIC in head:
            raise RefusedError("written by torch before 1.6, which wrote pickles")
        if not head.startswith(_ZIP):  # torch, too, goes by the first bytes, not by a zip behind others
            raise ValueError("damaged, or not a file that torch.save wrote")
        with open_archive(stream) as archive:
            return _read(archive, size)


def _read(archive: Archive, size: int) -> Any:
    """Return the value of an archive of a pickle and the storages of its tensors."""
    names = archive.names
    pickles = [name for name in names if name.endswith("data.pkl")]
    if len(pickles) != 1 or len(names) != len({*names}):
        raise ValueError("an archive that torch did not write")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != sys.byteorder.encode():
        raise ValueError("written on a machine of another byte order; save it again on this one")
    content = io.BytesIO(archive.read(pickles[0]))
    unpickler = _TorchUnpickler(content, size, lambda key: archive.read(f"{root}data/{key}"))
    return unpickler.load()
