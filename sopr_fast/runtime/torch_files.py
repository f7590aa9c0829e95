"""Weights and other plain values from files of `torch.save`, of any origin."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

from .containers import Archive, open_archive
from .files import open_regular, opened, size_of
from .pickles import STORAGES, PlainUnpickler, RefusedError, Storage, damaged

_TORCH_RECORDS = (
    "torch.device",
    *(f"torch.{dtype}" for dtype, _ in STORAGES.values()),
)
_ZIP = b"PK\x03\x04"
_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")  # of torch.save before 1.6


def is_torch_file(path: Path) -> bool:
    """Return whether a file begins as one that `torch.save` wrote."""
    with open_regular(path) as file:
        head = file.read(20)
    return head.startswith(_ZIP) or _MAGIC in head


def read_weights(source: Path | BinaryIO | bytes) -> Any:
    """Return what `torch.save` wrote: values as `read_pickle` returns, and tensors; RefusedError for a program."""
    with opened(source) as stream:
        head = stream.read(20)
        size = size_of(stream)
        if head.startswith(_ZIP):  # torch, too, goes by the first bytes, not by a zip behind others
            with open_archive(stream) as archive, damaged():
                return _from_archive(archive, size)
        with damaged():
            if _MAGIC not in head:
                raise ValueError("not a file that torch.save wrote")
            return _from_stream(stream, size)


def _from_archive(archive: Archive, size: int) -> Any:
    """Return the value of a zip archive of a pickle and the storages of its tensors."""
    names = archive.names
    if any("/code/" in name or name.endswith("constants.pkl") for name in names):
        raise RefusedError("a TorchScript program, which is code")
    pickles = [name for name in names if name.endswith("data.pkl")]
    if len(pickles) != 1 or len(names) != len({*names}):
        raise ValueError("an archive that torch did not write")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in names:
        _check_order(archive.read(f"{root}byteorder") == sys.byteorder.encode())

    def member(storage: Storage) -> bytes:
        return archive.read(f"{root}data/{storage.key}")

    unpickler = PlainUnpickler(io.BytesIO(archive.read(pickles[0])), size, _TORCH_RECORDS, member)
    return unpickler.plain(unpickler.load())


def _from_stream(stream: BinaryIO, size: int) -> Any:
    """Return the value of a file of torch before 1.6: five pickles, and the storages of the tensors in a row."""
    members: dict[str, bytes] = {}
    unpickler = PlainUnpickler(stream, size, _TORCH_RECORDS, lambda storage: members[storage.key])
    _magic, _version, system, value, keys = (unpickler.load() for _ in range(5))
    _check_order(system["little_endian"] == (sys.byteorder == "little"))
    for key in unpickler.plain(keys):
        (count,) = struct.unpack("=q", stream.read(8))
        length = max(count, 0) * unpickler.storages[key].itemsize
        unpickler.count(length)
        members[key] = stream.read(length)
    return unpickler.plain(value)


def _check_order(is_same: bool) -> None:
    if not is_same:
        raise ValueError("written on a machine of another byte order; save it again on this one")
