"""Checks of the tensors of a file, before anything is built from them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .text import printable


@contextlib.contextmanager
def reading(path: str | os.PathLike | None) -> Iterator[None]:
    """Name the file in errors of what is built from it.

    Raises:
        ValueError: Any error inside the block, other than of memory or of the file system.
    """
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
    """Check dtypes and shapes of tensors.

    Args:
        tensors: Tensors that must have these names and no others.
        layouts: Name → dtype and dimensions, such as `(torch.float32, "U D")`. A letter has one size in all tensors; a
            number is the size itself.
        sizes: Sizes of letters, where they are known.

    Returns:
        Size of each letter.

    Raises:
        ValueError: A tensor is missing, unknown, or of another dtype or shape.
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


def check_like(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Check that tensors have the names, dtypes and shapes of others.

    Raises:
        ValueError: A tensor is missing, unknown, or of another dtype or shape.
    """
    check_tensors(tensors, {name: (x.dtype, " ".join(map(str, x.shape))) for name, x in expected.items()})
