"""Regular files, opened for reading."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import cast


def open_regular(path: str | os.PathLike, *, buffering: int = -1) -> io.BufferedReader:
    """Open a regular file, or a link to one, for reading: a pipe would wait for a writer, a device may have no end.

    Raises:
        OSError: The file cannot be opened, or is a folder.
        ValueError: It is a pipe, socket or device.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EOPNOTSUPP):  # a socket
            raise ValueError("not a regular file") from error
        raise
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise ValueError("not a regular file")
    return cast("io.BufferedReader", open(descriptor, "rb", buffering=buffering))


def read_regular(path: str | os.PathLike) -> bytes:
    """Return the content of a file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()
