"""Arrays of `.npy` and `.npz` files, and the errors that all readers of logs raise."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.files import open_regular
from ...runtime.limits import free_memory
from ...runtime.rows import FileRows
from .arrays import Lazy, opened_later


@contextmanager
def reading(where: str | Path, kind: str) -> Iterator[None]:
    """Make every error inside the block name what is being read.

    Libraries raise errors of nearly any type for damaged files. Errors that already begin with `where` pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if str(error).startswith(f"{where}: "):
            raise
        verdict = f"{where}: damaged, cut short, or not {kind}"
        if isinstance(error, MemoryError):
            raise MemoryError(f"{verdict}, or larger than the free memory: {error}") from error
        raise ValueError(f"{verdict}: {error}") from error


def check_regular(path: Path) -> None:
    """Raise unless `path` is a regular file, or a link to one."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: not a regular file")
    try:
        open_regular(path).close()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_memory(where: str | Path, size: int) -> None:
    """Raise unless `size` bytes fit into the free memory."""
    free = free_memory()
    if size > free:
        raise MemoryError(f"{where}: {size:,} bytes when read, larger than the free memory ({free:,.0f} bytes)")


def read_folder(path: Path) -> dict[str, Any]:
    """Return the arrays of the `.npy` files of a folder, by the stem of their file, read when they are needed."""
    return {file.stem: opened_later(partial(open_npy, file)) for file in sorted(path.glob("*.npy"))}


def open_npy(path: Path) -> FileRows:
    """Open an `.npy` file, of which rows are read on demand."""
    check_regular(path)
    with reading(path, "an .npy file of a plain array"):
        return FileRows(path)


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of an archive by name, decompressed when they are needed."""
    with reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
        return {info.filename.removesuffix(".npy"): _open_member(path, archive, info) for info in archive.infolist()}


def _open_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Lazy:
    where = f"{path}: {info.filename.removesuffix('.npy')!r}"

    def read() -> np.ndarray:  # zipfile never inflates a member beyond its declared size
        with reading(where, "a plain array"), zipfile.ZipFile(path) as archive, archive.open(info) as member:
            return np.lib.format.read_array(member, allow_pickle=False)

    def refuse() -> np.ndarray:
        raise ValueError(
            f"{where} holds Python objects, stored as a pickle: if you trust the file, pass "
            f"dict(numpy.load({str(path)!r}, allow_pickle=True))"
        )

    try:
        with archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = header(member)
    except Exception:  # raised where the array is needed
        return Lazy((), object, read)
    return Lazy(shape, dtype, refuse if dtype.hasobject else read)
