"""Arrays of `.npy` and `.npz` files."""

from __future__ import annotations

import contextlib
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.rows import FileRows
from ..files import check_regular, reading
from .arrays import Lazy, opened_later


def read_folder(path: Path) -> dict[str, Any]:
    """Return the arrays of the `.npy` files of a folder, by the stem of their file, read when they are needed."""
    if not (files := sorted(path.glob("*.npy"))):
        raise ValueError(
            f"{path}: expected .npy files, or main_data.hdf5 of a Minari dataset; pass other forms of it as the object "
            "that minari.load_dataset returns"
        )
    return {file.stem: opened_later(partial(open_npy, file)) for file in files}


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
    shape: tuple[int, ...] = ()
    dtype = np.dtype(np.uint8)
    with contextlib.suppress(Exception), archive.open(info) as member:  # raised if the array is needed
        version = np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(member)

    def read() -> np.ndarray:  # zipfile never inflates a member beyond its declared size
        if dtype.hasobject:
            raise ValueError(
                f"{where} holds Python objects, stored as a pickle: if you trust the file, pass "
                f"dict(numpy.load({str(path)!r}, allow_pickle=True))"
            )
        with reading(where, "a plain array"), zipfile.ZipFile(path) as archive, archive.open(info) as member:
            return np.lib.format.read_array(member, allow_pickle=False)

    return Lazy(shape, dtype, read)
