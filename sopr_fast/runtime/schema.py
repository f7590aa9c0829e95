"""Checks of the fields and tensors of a file, before anything is built from them."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .text import printable

Check = Callable[[str, Any], Any]  # name, value → value; raises ValueError


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


def check_fields(name: str, values: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the fields of a JSON object, each checked.

    Args:
        name: Name of the object in errors.
        values: Object that must have these fields and no others.
        checks: Check of each field.

    Raises:
        ValueError: Not an object, a field is missing or unknown, or its value fails the check.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be an object, got {_short(values)}")
    for field in (*values, *checks):
        if field not in checks or field not in values:
            raise ValueError(f"{name} {'has no' if field in checks else 'has an unknown'} field {field!r}")
    return {field: check(field, values[field]) for field, check in checks.items()}


def record(checks: Mapping[str, Check]) -> Check:
    """Return a check for an object with fields."""
    return lambda name, value: check_fields(name, value, checks)


def list_of(check: Check, *, length: int | None = None) -> Check:
    """Return a check for a list, of a length if one is given."""

    def convert(name: str, value: Any) -> list[Any]:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            count = "" if length is None else f" of {length}"
            raise ValueError(f"{name} must be a list{count}, got {_short(value)}")
        return [check(f"{name}[{i}]", item) for i, item in enumerate(value)]

    return convert


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


def whole(least: int = 0, most: float = math.inf) -> Check:
    """Return a check for integers from `least` to `most`."""

    def convert(name: str, value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            limit = "" if most == math.inf else f" to {most}"
            raise ValueError(f"{name} must be an integer from {least}{limit}, got {_short(value)}")
        return value

    return convert


def real(name: str, value: Any) -> float:
    """Check for finite numbers."""
    if type(value) not in (int, float) or not abs(value) <= torch.finfo(torch.float64).max:
        raise ValueError(f"{name} must be a finite number, got {_short(value)}")
    return float(value)


def curves(name: str, value: Any) -> dict[str, list[Any]]:
    """Check for an object of lists of numbers, or of lists of such lists."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object, got {_short(value)}")

    def point(name: str, value: Any) -> Any:
        return [any_real(name, number) for number in value] if isinstance(value, list) else any_real(name, value)

    return {key: list_of(point)(f"{name} {key!r}", points) for key, points in value.items()}


def any_real(name: str, value: Any) -> float:
    """Check for numbers, NaN and infinite ones included."""
    if type(value) is not int and not isinstance(value, float):
        raise ValueError(f"{name} must be a number, got {_short(value)}")
    return value


def text(name: str, value: Any) -> str:
    """Check for strings."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, got {_short(value)}")
    return value


def mapping(name: str, value: Any) -> dict[str, Any]:
    """Check for objects."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {_short(value)}")
    return value


def choice(*choices: str) -> Check:
    """Return a check for one of a few words."""

    def convert(name: str, value: Any) -> str:
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {_short(value)}")
        return value

    return convert


def flag(name: str, value: Any) -> bool:
    """Check for True and False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {_short(value)}")
    return value


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


def _short(value: Any) -> str:
    """Return a value as text of at most 60 characters."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
