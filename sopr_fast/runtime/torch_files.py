"""Weights and other plain values from files of `torch.save`, of any origin.

Not by `torch.load(weights_only=True)`: before torch 2.10 a file could run code (CVE-2026-24747), and a small one can
take any memory.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from .containers import open_archive
from .files import opened, size_of
from .pickles import MOST_DEPTH, REFUSAL, PlainUnpickler, Record, RefusedError

_STORAGES = {
    f"torch.{kind}Storage": dtype
    for kind, dtype in {
        "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
        "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
        "Bool": torch.bool,
    }.items()
}  # fmt: skip
_RECORDS = ("torch.device", *_STORAGES, *map(str, _STORAGES.values()))
_ZIP = b"PK\x03\x04"  # first bytes


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
        }

    def persistent_load(self, pid: Any) -> Any:
        return pid  # of a storage: "storage", its type, its key, its device and its size

    def _tensor(
        self, state: Any, pid: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
    ) -> Tensor:
        is_storage = type(pid) is tuple and len(pid) == 5 and isinstance(pid[1], Record) and type(pid[2]) is str
        is_whole = is_storage and pid[1].source in _STORAGES and len(shape) == len(strides) <= MOST_DEPTH
        if not is_whole or not all(type(n) is int and 0 <= n < 2**62 for n in (offset, *shape, *strides)):
            raise RefusedError(f"its pickle has a tensor of another kind; {REFUSAL}")
        dtype = _STORAGES[pid[1].source]
        self.count(math.prod(shape) * dtype.itemsize)
        if 0 in shape:
            return torch.empty(shape, dtype=dtype, device="cpu")
        if (key := pid[2]) not in self._tensors:
            self._tensors[key] = torch.frombuffer(bytearray(self._member(key)), dtype=dtype)
        return self._tensors[key].as_strided(shape, strides, offset)


def read_weights(source: Path | BinaryIO | bytes) -> Any:
    """Return what `torch.save` wrote: values, and errors, as of `read_pickle`, and tensors."""
    with opened(source) as stream:
        size = size_of(stream)
        if stream.read(len(_ZIP)) != _ZIP:  # torch, too, goes by the first bytes, not by a zip behind others
            raise RefusedError("damaged, or written by torch before 1.6")
        with open_archive(stream) as archive:
            pickles = [name for name in archive.names if name.endswith("data.pkl")]
            if len(pickles) != 1 or len(archive.names) != len({*archive.names}):
                raise ValueError("an archive that torch did not write: move it to another folder")
            root = pickles[0].removesuffix("data.pkl")
            if f"{root}byteorder" in archive.names and archive.read(f"{root}byteorder") != sys.byteorder.encode():
                raise ValueError("written on a machine of another byte order; save it again on this one")
            content = io.BytesIO(archive.read(pickles[0]))
            return _TorchUnpickler(content, size, lambda key: archive.read(f"{root}data/{key}")).load()
