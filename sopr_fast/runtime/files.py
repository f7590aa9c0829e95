"""Files are written whole or not at all; tensors go into safetensors files of a kind, with a description."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

_KEY = "sopr_fast"


def check_place(path: str | os.PathLike | None) -> None:
    """Raises where no file can be written to `path`, if one is given, as trying tells.

    Raises:
        FileNotFoundError: its folder does not exist.
        IsADirectoryError: it is a folder.
        OSError: it is no regular file, or of the kind that writing into its folder raises.
    """
    if path is not None:
        _temporary_beside(_followed(path)).unlink()


def _followed(path: str | os.PathLike) -> Path:
    """The file that a link, if it is one, leads to."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def _temporary_beside(path: Path) -> Path:
    if path.is_dir():
        raise IsADirectoryError(f"cannot write {path}: it is a folder")
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write {path}: not a regular file")
    if not path.parent.exists():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    except OSError as error:
        raise _unwritable(path, error) from error
    os.close(handle)
    return Path(name)


def _unwritable(path: Path, error: OSError) -> OSError:
    return type(error)(f"cannot write {path}: {error.strerror or error}")


def check_checkpoint(path: str | os.PathLike | None, kind: str) -> dict[str, Any] | None:
    """The description of the checkpoint at `path`, if there is one; raises where a run can neither begin nor go on.

    Raises:
        OSError: see `check_place`.
        ValueError: the file there is truncated or of another kind.
    """
    check_place(path)
    if path is None or not Path(path).exists():
        return None
    with _opened(path, kind) as (_, description):
        return description


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike) -> Iterator[Path]:
    """A temporary name in the same folder that becomes `path` when the block ends well, and vanishes otherwise.

    Of a link, what it leads to is replaced.

    Raises:
        OSError: see `check_place`; of the temporary file's own faults, with the name asked for.
    """
    path = _followed(path)
    temporary = _temporary_beside(path)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if str(error.filename) == str(temporary):
            raise _unwritable(path, error) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


def save_tensors(path: str | os.PathLike, tensors: dict[str, Tensor], kind: str, description: dict[str, Any]) -> None:
    """A safetensors file of a kind, with a description that JSON can hold; equal contents are equal bytes.

    Raises:
        OSError: see `check_place`.
    """
    # In one key, since safetensors writes several in any order.
    metadata = {_KEY: json.dumps({"kind": kind, **description}, sort_keys=True)}
    with atomic_path(path) as temporary:
        try:
            save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, temporary, metadata)
        except SafetensorError as error:
            raise OSError(f"cannot write {path}: {error}") from error


def load_tensors(path: str | os.PathLike, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description that `save_tensors` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a folder.
        ValueError: the file is truncated or of another kind.
    """
    with _opened(path, kind) as (file, description):
        return {name: file.get_tensor(name) for name in file.keys()}, description  # noqa: SIM118


@contextlib.contextmanager
def _opened(path: str | os.PathLike, kind: str) -> Iterator[tuple[safe_open, dict[str, Any]]]:
    if Path(path).is_dir():
        raise IsADirectoryError(f"cannot read {path}: it is a folder")
    try:
        with safe_open(path, "pt") as file:
            description = _description(file)
            if description.get("kind") != kind:
                raise ValueError(f"{path} is not a {kind} of sopr_fast")
            yield file, description
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error


def _description(file: safe_open) -> dict[str, Any]:
    try:
        description = json.loads((file.metadata() or {}).get(_KEY, "{}"))
    except json.JSONDecodeError:
        return {}
    return description if isinstance(description, dict) else {}


def by_prefix(tensors: dict[str, Tensor], *prefixes: str) -> list[dict[str, Tensor]]:
    """For each prefix, the tensors named "prefix.name", by name."""
    return [
        {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}
        for prefix in prefixes
    ]
