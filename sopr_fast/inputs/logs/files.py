"""Arrays of `.npy` and `.npz` files, and the errors that all readers of logs raise."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ...runtime.files import open_regular
from ...runtime.limits import free_memory
from ...runtime.rows import FileRows


@contextmanager
def reading(where: str | Path, kind: str) -> Iterator[None]:
    """Make every error inside the block name what is being read.

    Libraries raise errors of nearly any type for damaged files. Errors that already begin with `where` pass unchanged.

    Args:
        where: Beginning of the message, such as the file's path.
        kind: Expected content, such as "an HDF5 file".

    Raises:
        MemoryError: The content is larger than the free memory.
        ValueError: Any other error.
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
    """Raise unless `path` is a regular file, or a link to one.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A folder, pipe, socket or device.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: not a regular file")
    try:
        open_regular(path).close()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def check_memory(where: str | Path, size: int) -> None:
    """Raise unless `size` bytes fit into the free memory.

    Raises:
        MemoryError: They do not fit; begins with `where`.
    """
    free = free_memory()
    if size > free:
        raise MemoryError(f"{where}: {size:,} bytes when read, larger than the free memory ({free:,.0f} bytes)")


def read_folder(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Read the `.npy` files of a folder.

    Args:
        path: Folder.
        wanted: Stems of the files to read; the others give empty arrays.

    Returns:
        Arrays by the stem of their file.

    Raises:
        MemoryError: The wanted files are larger than the free memory.
        ValueError: A file is damaged, not a regular file, or an array of Python objects.
    """
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    for stem in files.keys() & wanted:
        check_regular(files[stem])
    check_memory(path, sum(files[stem].stat().st_size for stem in files.keys() & wanted))
    arrays = {}
    for stem, file in files.items():
        arrays[stem] = np.empty(0)
        if stem in wanted:
            with reading(file, "an .npy file of a plain array"):
                arrays[stem] = np.asarray(FileRows.of_npy(file))
    return arrays


def read_npz(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Read the arrays of an archive.

    Args:
        path: Archive.
        wanted: Names of the arrays to decompress; the others give empty arrays.

    Returns:
        Arrays by name.

    Raises:
        MemoryError: The wanted arrays are larger than the free memory.
        ValueError: The file is damaged, or an array holds Python objects.
    """
    arrays = {}
    with reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        # zipfile never inflates a member beyond its declared size.
        check_memory(path, sum(info.file_size for key, info in members.items() if key in wanted))
        for key, info in members.items():
            arrays[key] = np.empty(0)
            if key in wanted:
                with reading(f"{path}: {key!r}", "a plain array"), archive.open(info) as member:
                    arrays[key] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays
