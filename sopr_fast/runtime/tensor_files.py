"""Safetensors files of tensors with a description and a content hash, and checks of what they hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from .containers import check_size, read_json
from .files import atomic_path, check_regular, read_regular
from .text import escaped_errors, printable

_KEY = "sopr_fast"  # of the metadata


@escaped_errors()
def save_tensors(path: str | os.PathLike, tensors: dict[str, Tensor], kind: str, description: dict[str, Any]) -> None:
    """Write a safetensors file whose metadata hold a description, its kind, and a hash of all contents.

    The description holds values of JSON. Equal contents give equal bytes.
    """
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    described = json.loads(json.dumps({**description, "kind": kind}, sort_keys=True))  # as it will be read
    text = json.dumps({**described, "hash": _content_hash(tensors, described)})
    with atomic_path(path) as temporary:
        temporary.write_bytes(save(tensors, {_KEY: text}))  # it would write several keys in arbitrary order


@escaped_errors()
def load_tensors(path: str | os.PathLike, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the description that `save_tensors` wrote to a file of this kind, which is read once.

    Raises:
        FileNotFoundError, IsADirectoryError: No such file, or a folder.
        MemoryError: The file is larger than the free memory.
        ValueError: Not a regular file, cut short, damaged, or of another kind.
    """
    check_regular(path)
    check_size(path, os.path.getsize(path))
    data = read_regular(path)
    try:
        tensors = load(data)
    except (AssertionError, KeyError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a whole safetensors file, so no {kind}; name another file: {error}") from error
    try:
        description = read_json(read_json(_header(data))["__metadata__"][_KEY].encode())
        content_hash, found = description.pop("hash"), description["kind"]
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        content_hash = found = None
    if found != kind:
        raise ValueError(f"{path} is not a {kind} of sopr_fast: name another file")
    if content_hash != _content_hash(tensors, description):
        raise ValueError(f"{path} is damaged: content hash differs; delete it, and train again")
    del description["kind"]
    return tensors, description


def is_own(data: bytes) -> bool:
    """Return whether these are the bytes of a file that `save_tensors` wrote."""
    return f'"{_KEY}":'.encode() in _header(data)


def _header(data: bytes) -> bytes:
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def _content_hash(tensors: Mapping[str, Tensor], description: Any) -> str:
    return fingerprint(description, *(part for name in sorted(tensors) for part in (name, tensors[name])))


def fingerprint(*parts: Any) -> str:
    """Return a SHA-256 hash of numbers, text, arrays and tensors."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray | Tensor):
            array = part.cpu().numpy() if isinstance(part, Tensor) else part
            digest.update(f"{array.shape} {array.dtype}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        else:
            digest.update(f"{part}\n".encode())
    return digest.hexdigest()


def by_prefix(tensors: dict[str, Tensor], *prefixes: str) -> list[dict[str, Tensor]]:
    """Return, for each prefix, the tensors named "prefix.name" by their name."""
    return [
        {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}
        for prefix in prefixes
    ]


@contextlib.contextmanager
def reading(path: str | os.PathLike | None) -> Iterator[None]:
    """Name the file in errors of what is built from it; all but those of memory and files become ValueErrors."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        where = printable(path)
        if str(error).startswith(f"{where} "):
            raise
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{where} is damaged: {printable(reason)}") from error


def check_tensors(
    tensors: Mapping[str, Tensor],
    layouts: Mapping[str, tuple[torch.dtype, str]],
    sizes: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the size of each dimension, or raise ValueError if a tensor is missing, unknown, or of another layout.

    A layout is a dtype and dimensions, such as `(torch.float32, "U D")`. A letter has one size in all tensors, which
    `sizes` may hold; a number is the size itself.
    """
    sizes = dict(sizes or {})
    for name in (*tensors, *layouts):
        if name not in layouts or name not in tensors:
            raise ValueError(f"{'no' if name in layouts else 'unknown'} tensor {name!r}")
    for name, (dtype, dimensions) in layouts.items():
        tensor, expected = tensors[name], dimensions.split()
        wanted = [int(d) if d.isdecimal() else sizes.get(d, size) for d, size in zip(expected, tensor.shape)]  # noqa: B905
        if tensor.dtype != dtype or len(expected) != tensor.ndim or wanted != [*tensor.shape]:
            shape = ", ".join(f"{d}={sizes[d]}" if d in sizes else d for d in expected)
            raise ValueError(f"tensor {name!r} must be {dtype} ({shape}), got {tensor.dtype} {tuple(tensor.shape)}")
        sizes |= {d: size for d, size in zip(expected, tensor.shape, strict=True) if not d.isdecimal()}
    return sizes


def restore(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values to tensors, or raise ValueError unless they have the same names, dtypes and shapes."""
    check_tensors(saved, {name: (x.dtype, " ".join(map(str, x.shape))) for name, x in tensors.items()})
    for name, tensor in tensors.items():
        tensor.copy_(saved[name])
