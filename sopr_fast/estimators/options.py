"""What the options of the estimators may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from numbers import Real
from typing import Any

from ..runtime.checks import check_integer, check_number


class Options:
    """Checks the options of a dataclass by name and keeps numpy's numbers as Python's.

    Raises:
        ValueError: names the option at fault.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in _CHECKS:
                object.__setattr__(self, field.name, check_option(field.name, getattr(self, field.name)))


def check_option(name: str, value: Any) -> Any:
    """The value, in Python's own types.

    Raises:
        ValueError: names the option.
    """
    return _CHECKS[name](name, value)


def _integer(least: int) -> Callable[[str, Any], int]:
    return lambda name, value: check_integer(name, value, least)


def _number(wanted: str, fits: Callable[[float], bool]) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        number = check_number(name, value)
        if not fits(number):
            raise ValueError(f"{name} must be {wanted}, got {value!r}")
        return number

    return check


def _hidden(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"{name} must be a sequence of widths, got {value!r}")
    return tuple(check_integer(f"{name}[{i}]", width, 1) for i, width in enumerate(value))


def _or_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _clip(name: str, value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    numbers = isinstance(value, Sequence) and all(isinstance(bound, Real) for bound in value)
    if not numbers or len(value) != 2 or not value[0] < value[1]:
        raise ValueError(f"{name} must be (low, high) or None, got {value!r}")
    return float(value[0]), float(value[1])


def _start(name: str, value: Any) -> str:
    if value not in ("initial", "data"):
        raise ValueError(f"{name} is {value!r}; choose 'initial' or 'data'")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("updates", "batch_size", "ensemble", "draws", "rollouts", "components", "rows"), _integer(1)),
    **dict.fromkeys(("bootstraps", "seed"), _integer(0)),
    **dict.fromkeys(("learning_rate", "nu_rate", "zeta_rate", "noise"), _number("above 0", lambda value: value > 0)),
    "target_rate": _or_none(_number("above 0 and at most 1", lambda value: 0 < value <= 1)),
    "average": _number("at most 1", lambda value: value <= 1),
    "exponent": _number("more than 1", lambda value: value > 1),
    "memory": check_number,
    "discount": _number("less than 1", lambda value: value < 1),
    "hidden": _hidden,
    "horizon": _or_none(_integer(1)),
    "clip": _clip,
    "start": _start,
}
