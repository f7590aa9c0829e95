"""Checks of what users pass: numbers and options of dataclasses, each described once."""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

TOO_LARGE = 1e15  # sums of squares must be float32 numbers


def short(value: Any) -> str:
    """Return a value as text of at most 60 characters."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


@dataclass(frozen=True)
class Check:
    """A check of one option, called with its name and its value."""

    convert: Callable[[str, Any], Any]  # returns the value in Python's own types, or raises ValueError
    parse: Callable[[str], Any] = str  # of a command line
    choices: tuple[str, ...] = ()

    def __call__(self, name: str, value: Any) -> Any:
        return self.convert(name, value)


def option(default: Any, check: Check) -> Any:
    """Return a dataclass field with a default, whose value `Checked` checks and the command line parses."""
    return dataclasses.field(default=default, metadata={"check": check})


def descriptions(kind: type) -> dict[str, str]:
    """Return the descriptions of attributes in the docstring of a class, for `--help`; none if Python runs with -OO."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: text[:1].lower() + " ".join(text[1:].split()).rstrip(".") for name, text in found}


class Checked:
    """Base of dataclasses whose fields are made by `option`; ValueError names one whose value fails its check."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = field.metadata["check"](field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)


def integer(least: int = 0, most: float = math.inf) -> Check:
    """Return a check for integers, Python's or NumPy's, from `least` to `most`."""

    def convert(name: str, value: Any) -> int:
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not least <= int(value) <= most:
            limits = f"{least} or more" if most == math.inf else f"{least} to {most}"
            raise ValueError(f"{name} must be an integer, {limits}, got {short(value)}")
        return int(value)

    return Check(convert, int)


def number(*, least: float = 0.0, above: float = -math.inf, below: float = math.inf, most: float = math.inf) -> Check:
    """Return a check for finite numbers, Python's or NumPy's, from `least`, above `above`, below `below`, to `most`."""
    limits = f", above {above:g}" if above > -math.inf else f", {least:g} or more" if least > -math.inf else ""
    limits += f", less than {below:g}" if below < math.inf else f", at most {most:g}" if most < math.inf else ""

    def convert(name: str, value: Any) -> float:
        try:
            number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
        except OverflowError:
            number = math.inf
        if not (least <= number < below and above < number <= most) or math.isinf(number):
            raise ValueError(f"{name} must be a finite number{limits}, got {short(value)}")
        return number

    return Check(convert, float)


def choice(*choices: str) -> Check:
    """Return a check for one of a few words."""

    def convert(name: str, value: Any) -> str:
        if value not in choices:
            raise ValueError(f"{name} is {short(value)}; choose {' or '.join(map(repr, choices))}")
        return value

    return Check(convert, str, choices)


def optional(check: Check) -> Check:
    """Return a check that also accepts None."""
    return dataclasses.replace(check, convert=lambda name, value: None if value is None else check(name, value))


def _to_bool(name: str, value: Any) -> bool:
    if value not in (False, True):
        raise ValueError(f"{name} must be True or False, got {short(value)}")
    return bool(value)


def _to_widths(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{name} must be a sequence of widths (in the shell {name}=32,32), got {short(value)}")
    return tuple(integer(1)(f"{name}[{i}]", width) for i, width in enumerate(value))


def _to_interval(name: str, value: Any) -> tuple[float, float]:
    fits = isinstance(value, Sequence) and all(isinstance(bound, numbers.Real) for bound in value)
    if not fits or len(value) != 2 or not value[0] < value[1]:
        raise ValueError(f"{name} must be (low, high) or None, got {short(value)}")
    return float(value[0]), float(value[1])


flag = Check(_to_bool, lambda text: {"true": True, "false": False}[text.lower()], ("true", "false"))
widths = Check(_to_widths, lambda text: tuple(int(width) for width in text.split(",") if width))
interval = Check(_to_interval, lambda text: tuple(float(bound) for bound in text.split(",")))
