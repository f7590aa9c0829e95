"""The only door to files whose contents inflate: zip archives, HDF5, parquet and JSON.

What a file says that it holds passes `check_size` before it is made. No other module opens such files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .extras import library
from .files import opened, size_of
from .resources import free_memory
from .rows import read_header
from .text import printable

_RATIO, _ALLOWANCE = 100, 64 << 20  # bytes that a byte of a file may become, and more of them: zeros compress better
_DIRECTORY_BYTES = 16 << 20  # of some 200,000 members
_JSON_COPIES = 13  # bytes of objects for a byte of text
_PARQUET_BUFFER = 1 << 20  # bytes
_LARGEST_CHUNK = 64 << 20  # bytes
_DEFLATED = 1032  # bytes at most of a byte of deflate
_CHECKSUM = 64  # bytes at most that filters add to a chunk


def check_size(where: str | os.PathLike, size: int, stored: int | None = None) -> None:
    """Raise unless contents of `size` bytes may be made; call it before they are, with the size that the file states.

    ValueError if they are far larger than the `stored` bytes that they take in the file, which logs leave out: they may
    hold nothing but zeros. MemoryError if they are larger than the free memory.
    """
    if stored is not None and size > _RATIO * stored + _ALLOWANCE:
        raise ValueError(f"{where}: {size >> 20:,} MiB when read, far more than in the file: save it uncompressed")
    if size > (free := free_memory()):
        raise MemoryError(
            f"{where}: {size:,} bytes when read, larger than the free memory ({free:,.0f} bytes): free some"
        )


class Archive:
    """Members of a zip archive; see `open_archive`."""

    def __init__(self, archive: zipfile.ZipFile, where: str, is_log: bool) -> None:
        self.names = archive.namelist()
        self._archive, self._where, self._is_log = archive, where, is_log
        self._inflated = self._stored = 0

    def read(self, name: str) -> bytes:
        """Return the content of a member."""
        with self._open(name) as stream:
            content: bytes = stream.read(self._archive.getinfo(name).file_size)  # it would first inflate all without
            return content

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return the shape and type of the array in a member; those of no array if they cannot be read."""
        with contextlib.suppress(Exception), self._archive.open(name) as stream:  # raised where it is needed
            shape, _, dtype = read_header(stream)
            return shape, dtype
        return (), np.dtype(object)

    def array(self, name: str) -> np.ndarray:
        """Return the array in a member."""
        with self._open(name) as stream:
            return np.lib.format.read_array(stream, allow_pickle=False)

    def _open(self, name: str) -> Any:
        """Open a member if those that were opened so far are bounded together."""
        member = self._archive.getinfo(name)
        self._inflated += member.file_size
        self._stored += member.compress_size
        stored = None if self._is_log else min(self._stored, self._archive.start_dir)  # the directory may lie
        check_size(f"{self._where}{name.removesuffix('.npy')!r}", self._inflated, stored)
        return self._archive.open(name)


@contextlib.contextmanager
def open_archive(source: Path | BinaryIO, *, is_log: bool = False) -> Iterator[Archive]:
    """Open a zip archive, or raise ValueError if it is not whole or lists too many members.

    Members pass `check_size` when they are read, those of a log only by the free memory.
    """
    where = f"{printable(source)}: " if isinstance(source, Path) else ""
    try:
        with opened(source) as stream:
            # The record at the end of the file; opening the archive would create an object for every listed member.
            end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
            if end is not None and end[zipfile._ECD_SIZE] > _DIRECTORY_BYTES:  # type: ignore[attr-defined]
                raise ValueError("a zip archive with too many members")
            with zipfile.ZipFile(stream) as archive:
                yield Archive(archive, where, is_log)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an offset before the start of the file
            raise
        raise ValueError("damaged, or not a zip archive") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ValueError(f"damaged, or not a zip archive ({error})") from error


def member_names(path: Path) -> list[str]:
    """Return the names of the members of a zip archive; none of another file."""
    if not zipfile.is_zipfile(path):
        return []
    with open_archive(path) as archive:
        return archive.names


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a parquet file; values of its columns, run lengths inflated, pass `check_size` before they are read."""
    parquet, pyarrow = (library(name, "parquet", f"{path}: reading it") for name in ("pyarrow.parquet", "pyarrow"))
    with parquet.ParquetFile(path, buffer_size=_PARQUET_BUFFER, pre_buffer=False) as file:  # else columns stay
        yield file
    pyarrow.default_memory_pool().release_unused()


@contextlib.contextmanager
def open_hdf5(path: Path, **options: Any) -> Iterator[Any]:
    """Open an HDF5 file; the chunks of a dataset pass `check_chunks` before they are read."""
    import h5py

    with h5py.File(path, "r", **options) as file:
        yield file


def check_chunks(dataset: Any, where: str) -> None:
    """Raise ValueError if chunks of a dataset of HDF5 are far larger than it, packed twice, or inflate to more."""
    layout = dataset.id.get_create_plist()
    filters = [layout.get_filter(i)[0] for i in range(layout.get_nfilters())]
    if not dataset.chunks or not filters:
        return
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if len({*filters}) < len(filters) or size > max(_LARGEST_CHUNK, 2 * dataset.nbytes):
        raise ValueError(f"{where} has chunks far larger than it, or packed twice: write it without chunks")
    most, suspects = size + _CHECKSUM, list[tuple[int, ...]]()

    def note(chunk: Any) -> None:
        if _DEFLATED * chunk.size > max(_LARGEST_CHUNK, most) and not chunk.filter_mask:
            suspects.append(chunk.chunk_offset)

    if dataset.compression == "gzip":  # of which HDF5 would inflate all
        dataset.id.chunk_iter(note)
    for offset in suspects:
        stream = zlib.decompressobj()
        with contextlib.suppress(zlib.error):  # of another filter after this one
            stream.decompress(dataset.id.read_direct_chunk(offset)[1], most)
            if stream.unconsumed_tail and not stream.eof:
                raise ValueError(f"{where}: a chunk inflates to more than its {size:,} bytes")


def read_json(source: Path | bytes) -> Any:
    """Return the content of JSON in UTF-8, whose objects pass `check_size`; a list where each line is JSON of its own.

    ValueError if an object has a name twice.
    """
    with opened(source) as stream:
        check_size(source if isinstance(source, Path) else "JSON", _JSON_COPIES * size_of(stream))
        text = stream.read().decode("utf-8-sig")
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        return [json.loads(line, object_pairs_hook=_unique) for line in text.splitlines() if line.strip()]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"an object has the name {repeated!r} twice")
    return content
