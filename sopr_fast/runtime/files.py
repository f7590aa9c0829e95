"""Files written whole or not at all, and safetensors files of tensors with a description and a content hash."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from .regular import open_regular
from .text import escaped_errors

_KEY = "sopr_fast"
_HASH = '{"sha256": "'  # beginning of the description, which 64 hexadecimal digits follow
_DIGITS = 64
_HASH_IN_HEADER = f'"{_KEY}":"'.encode() + json.dumps(_HASH)[1:-1].encode()


@escaped_errors()
def check_place(path: str | os.PathLike | None) -> None:
    """Try to write a file at `path` and raise if that fails; None is accepted.

    Raises:
        FileNotFoundError: The folder does not exist.
        IsADirectoryError: `path` is a folder.
        OSError: `path` is not a regular file, or writing into its folder failed.
    """
    if path is not None:
        with _temporary_file(_resolve(path)):
            pass


def _resolve(path: str | os.PathLike) -> Path:
    """Return the target of a link, or `path` itself."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary file next to `path` that replaces it when the block ends, and is removed if the block raises.

    The target of a link is replaced, not the link, and its mode is kept. Temporary files that killed processes left
    there are removed.

    Raises:
        OSError: See `check_place`; errors of the temporary file name `path`.
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
            if error.filename is None or str(error.filename) == str(temporary):  # None where a disk is full
                raise _unwritable(path, error) from error
            raise


@contextlib.contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
    """Yield a new empty file next to `path`, locked while the block runs, so that other writers leave it alone."""
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write {path}: not a regular file")
    if not path.parent.exists():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        _remove_abandoned(path)
        temporary, lock = _create_locked(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        os.close(lock)


def _create_locked(path: Path) -> tuple[Path, int]:
    """Return a new file next to `path` and a descriptor of it that holds its lock."""
    while True:
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp{path.suffix}"
        lock = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks, where none are removed either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return temporary, lock
        os.close(lock)  # another writer removed it before it was locked


def _remove_abandoned(path: Path) -> None:
    """Remove temporary files next to `path` that no living writer has locked."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.tmp{re.escape(path.suffix)}")
    with os.scandir(path.parent) as entries:
        files = [entry.path for entry in entries if name.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
    for file in files:
        with contextlib.suppress(OSError):  # removed meanwhile, locked by its writer, or another user's
            lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(file)
            finally:
                os.close(lock)


def _unwritable(path: Path, error: OSError) -> OSError:
    return type(error)(f"cannot write {path}: {error.strerror or error}")


@escaped_errors()
def save_tensors(path: str | os.PathLike, tensors: dict[str, Tensor], kind: str, description: dict[str, Any]) -> None:
    """Write a safetensors file whose header holds a description and a SHA-256 hash of the whole file.

    Equal contents give equal bytes.

    Args:
        path: File to write or replace.
        tensors: Tensors by name, on any device.
        kind: Kind of file, which `load_tensors` must be asked for.
        description: Values that JSON can hold.

    Raises:
        OSError: See `check_place`.
    """
    text = json.dumps({"kind": kind, **description}, sort_keys=True)
    text = f'{_HASH}{"0" * _DIGITS}", {text.removeprefix("{")}'
    # One metadata key, since safetensors writes several in arbitrary order.
    data = bytearray(save({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, {_KEY: text}))
    start = data.index(_HASH_IN_HEADER) + len(_HASH_IN_HEADER)
    data[start : start + _DIGITS] = _digest(data, start)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


@escaped_errors()
def load_tensors(path: str | os.PathLike, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote; the tensors own their memory, and the file is read once.

    Args:
        path: File.
        kind: Kind of file that it must be.

    Returns:
        Tensors by name, and the description.

    Raises:
        FileNotFoundError: No such file.
        IsADirectoryError: `path` is a folder.
        MemoryError: The file is larger than the free memory.
        ValueError: Not a regular file, cut short, damaged, of another kind, or written by an older version.
    """
    data = _read_once(path)
    header, has_hash = _header(data), is_own(data)
    start = 8 + header.find(_HASH_IN_HEADER) + len(_HASH_IN_HEADER)
    if has_hash and data[start : start + _DIGITS] != _digest(data, start):
        raise ValueError(f"{path} is damaged: content hash differs")
    try:
        tensors = load(data)
    except (AssertionError, KeyError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
    try:
        description = json.loads(json.loads(header)["__metadata__"][_KEY])
        is_kind = description.pop("kind") == kind
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        is_kind = False
    if not is_kind:
        raise ValueError(f"{path} is not a {kind} of sopr_fast")
    if not has_hash:
        raise ValueError(f"{path} has no content hash: an older version of sopr_fast wrote it; write it again")
    del description["sha256"]
    return tensors, description


def is_own(data: bytes) -> bool:
    """Return whether these are the bytes of a file that `save_tensors` wrote."""
    return _HASH_IN_HEADER in _header(data)


def check_checkpoint(path: str | os.PathLike | None, kind: str) -> dict[str, Any] | None:
    """Return the description of the checkpoint at `path`, None without one, or raise if a run could not use the file.

    Raises:
        OSError: See `check_place`.
        ValueError: See `load_tensors`.
    """
    check_place(path)
    if path is None or not Path(path).exists():
        return None
    return load_tensors(path, kind)[1]


def by_prefix(tensors: dict[str, Tensor], *prefixes: str) -> list[dict[str, Tensor]]:
    """Return, for each prefix, the tensors named "prefix.name" by their name."""
    return [
        {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}
        for prefix in prefixes
    ]


def _read_once(path: str | os.PathLike) -> bytes:
    """Return the bytes of a file that may be a safetensors file: regular, and holding the header it announces."""
    if os.path.isdir(path):
        raise IsADirectoryError(f"cannot read {path}: it is a folder")
    try:
        file = open_regular(path)
    except ValueError as error:
        raise ValueError(f"{path} is not a regular file") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        header_size = file.read(8)
        if len(header_size) < 8 or int.from_bytes(header_size, "little") > size - 8:
            raise ValueError(f"{path} is not a whole safetensors file: it is cut short, or of another format")
        file.seek(0)
        try:
            return file.read()
        except MemoryError as error:
            raise MemoryError(f"{path} is larger than the free memory: {size:,} bytes") from error


def _header(data: bytes) -> bytes:
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def _digest(data: bytes | bytearray, start: int) -> bytes:
    """Return the hexadecimal SHA-256 of the data without the digits of the hash itself, which begin at `start`."""
    digest = hashlib.sha256(memoryview(data)[:start])
    digest.update(memoryview(data)[start + _DIGITS :])
    return digest.hexdigest().encode()
