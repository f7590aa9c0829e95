"""Regular files, opened for reading, or written whole or not at all; and errors that name what is read."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .text import escaped_errors


def open_regular(path: str | os.PathLike) -> io.BufferedReader:
    """Open a regular file, or a link to one, for reading: a pipe would wait for a writer, a device may have no end."""
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
    return open(descriptor, "rb")


def check_regular(path: str | os.PathLike) -> None:
    """Raise unless `path` is a regular file, or a link to one."""
    try:
        open_regular(path).close()
    except (FileNotFoundError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error
        raise type(error)(f"{path}: {reason}") from error


def read_regular(path: str | os.PathLike) -> bytes:
    """Return the content of a file; see `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def opened(source: Path | BinaryIO | bytes) -> contextlib.AbstractContextManager[BinaryIO]:
    """Return the context of a regular file at a path, of an open file, or of content."""
    if isinstance(source, Path):
        return open_regular(source)
    return contextlib.nullcontext(io.BytesIO(source) if isinstance(source, bytes) else source)


def size_of(stream: BinaryIO) -> int:
    """Return the size of a file, which is then at its beginning."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return size


def check_place(path: str | os.PathLike | None) -> None:
    """Try to write a file at `path`, and raise OSError with the reason if that fails; None is accepted."""
    if path is not None:
        with escaped_errors(), _temporary_file(_resolve(path)):
            pass


def _resolve(path: str | os.PathLike) -> Path:
    """Return the target of a link, or `path` itself."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary file next to `path` that replaces it when the block ends, and is removed if the block raises.

    The target of a link is replaced, not the link, and its mode is kept. Errors name `path`, see `check_place`.
    """
    path = _resolve(path)
    with escaped_errors(), _temporary_file(path) as temporary:
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
                if path.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            temporary.replace(path)
        except OSError as error:
            if error.filename is None or str(error.filename) == str(temporary):  # None if a disk is full
                raise _unwritable(path, error) from error
            raise


@contextlib.contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
    """Yield a new empty file next to `path`."""
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder; name a file in it")
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write {path}: not a regular file; name another")
    if not path.parent.exists():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist; make it")
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp{path.suffix}"
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> OSError:
    return type(error)(f"cannot write {path}: {error.strerror or error}")


@contextlib.contextmanager
def reading(where: str | Path, kind: str) -> Iterator[None]:
    """Make every error inside the block name what is being read.

    Libraries raise errors of nearly any type for damaged files. Errors that already begin with `where` pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or str(error).startswith(f"{where}: "):
            raise
        if isinstance(error, UnicodeDecodeError):
            raise ValueError(f"{where}: not in UTF-8, or not {kind}: {error}; save text in UTF-8") from error
        raise ValueError(f"{where}: damaged, cut short, or not {kind}: {error}") from error


@contextlib.contextmanager
def naming(source: str | Path) -> Iterator[None]:
    """Make every error inside the block begin with the name of what is read: nothing below the door needs to know it.

    Errors of types that no reader documents become ValueErrors, since the source may be damaged.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ImportError | OSError) or str(error).startswith(str(source)):
            raise
        if not isinstance(error, MemoryError | TypeError | ValueError):
            what = f"damaged, or of a form that cannot be read ({type(error).__name__}: {error})"
            raise ValueError(f"{source}: {what}") from error
        error.args = (f"{source}: {error}",)
        raise


def make_folder(folder: Path, done: str) -> None:
    """Make a folder if there is none; raise NotADirectoryError, which says what is done in it, if it is a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(f"{done} in a folder, but {folder} is a file: name another") from error
