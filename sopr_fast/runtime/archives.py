"""Zip archives, with bounds on what they inflate to."""

from __future__ import annotations

import contextlib
import errno
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .files import opened

_DIRECTORY_BYTES = 16 << 20  # some 200,000 members
_RATIO = 20  # weights compress by less than 2
_ALLOWANCE = 64 << 20  # bytes, since small members such as zeros compress better


@contextlib.contextmanager
def open_archive(source: Path | BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive, or raise ValueError if it is not whole or lists too many members."""
    try:
        with opened(source) as stream:
            # The record at the end of the file; opening the archive would create an object for every listed member.
            end = zipfile._EndRecData(stream)  # type: ignore[attr-defined]
            if end is not None and end[zipfile._ECD_SIZE] > _DIRECTORY_BYTES:  # type: ignore[attr-defined]
                raise ValueError("a zip archive with too many members")
            with zipfile.ZipFile(stream) as archive:
                yield archive
    except OSError as error:
        if error.errno != errno.EINVAL:  # an offset before the start of the file
            raise
        raise ValueError("damaged, or not a zip archive") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ValueError(f"damaged, or not a zip archive ({error})") from error


def read_members(archive: zipfile.ZipFile, names: list[str]) -> dict[str, bytes]:
    """Read some members of an archive, or raise ValueError if they inflate to much more than it holds."""
    members = [archive.getinfo(name) for name in names]
    inflated = sum(member.file_size for member in members)
    compressed = min(sum(member.compress_size for member in members), archive.start_dir)  # the directory lies behind
    if inflated > _RATIO * compressed + _ALLOWANCE:
        raise ValueError(f"its members inflate to {inflated / 2**20:.0f} MiB, far more than they take in the archive")
    return {name: read_member(archive, name) for name in names}


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return as many bytes of a member as the directory says: `archive.read` would first inflate all."""
    with archive.open(name) as stream:
        return stream.read(archive.getinfo(name).file_size)
