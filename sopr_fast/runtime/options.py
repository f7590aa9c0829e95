"""Options of dataclasses, each described once: default, check and help text."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .checks import check_integer, check_number


@dataclass(frozen=True)
class Check:
    """A check of one option's value.

    Attributes:
        convert: Return the value in Python's own types; called with the option's name and value; raises ValueError.
        parse: Function that reads the value from a command line's text.
        choices: Accepted values, where they are few.
    """

    convert: Callable[[str, Any], Any]
    parse: Callable[[str], Any]
    choices: tuple[str, ...] = ()

    def __call__(self, name: str, value: Any) -> Any:
        return self.convert(name, value)


def option(default: Any, check: Check, help: str) -> Any:
    """Return a dataclass field whose value `Options` checks and the command line offers.

    Args:
        default: Value where none is set.
        check: Check of the value.
        help: One phrase for `--help` and the documentation.
    """
    return dataclasses.field(default=default, metadata={"check": check, "help": help})


class Options:
    """Base of dataclasses whose fields are made by `option`.

    Raises:
        ValueError: A value fails its check; names the option.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = field.metadata["check"](field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)


def integer(least: int) -> Check:
    """Return a check for integers, see `check_integer`."""
    return Check(lambda name, value: check_integer(name, value, least), int)


def number(*, above: float | None = None, below: float = math.inf, most: float = math.inf) -> Check:
    """Return a check for finite numbers, see `check_number`."""
    return Check(lambda name, value: check_number(name, value, above=above, below=below, most=most), float)


def choice(*choices: str) -> Check:
    """Return a check for one of a few words."""

    def convert(name: str, value: Any) -> str:
        if value not in choices:
            raise ValueError(f"{name} is {value!r}; choose {' or '.join(map(repr, choices))}")
        return value

    return Check(convert, str, choices)


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
    return dataclasses.replace(check, convert=lambda name, value: None if value is None else check(name, value))


def _to_bool(name: str, value: Any) -> bool:
    if value not in (False, True):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _to_widths(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{name} must be a sequence of widths, got {value!r}")
    return tuple(integer(1)(f"{name}[{i}]", width) for i, width in enumerate(value))


def _to_interval(name: str, value: Any) -> tuple[float, float]:
    fits = isinstance(value, Sequence) and all(isinstance(bound, numbers.Real) for bound in value)
    if not fits or len(value) != 2 or not value[0] < value[1]:
        raise ValueError(f"{name} must be (low, high) or None, got {value!r}")
    return float(value[0]), float(value[1])


flag = Check(_to_bool, lambda text: {"true": True, "false": False}[text.lower()], ("true", "false"))
widths = Check(_to_widths, lambda text: tuple(int(width) for width in text.split(",") if width))
interval = Check(_to_interval, lambda text: tuple(float(bound) for bound in text.split(",")))
