"""Runtime choices: what decides where and how fast work runs, and never its result by more than rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .checks import Check, Checked, flag, integer, option, optional

if TYPE_CHECKING:
    import torch


def _to_device(name: str, value: Any) -> torch.device:
    from .devices import check_device

    return check_device(value)


@dataclass(frozen=True)
class Context(Checked):
    """Runtime choices in force; see `options`."""

    progress: bool = option(True, flag)
    batch_size: int = option(16384, integer(1))
    device: torch.device | None = option(None, optional(Check(_to_device)))  # noqa: RUF009


_context: ContextVar[Context] = ContextVar("sopr_fast.options", default=Context())  # noqa: B039


def current() -> Context:
    """Return the choices in force in this thread or task."""
    return _context.get()


def current_device() -> torch.device:
    """Return the device on which new models and data are put: that of `options`, else the CPU."""
    import torch

    return current().device or torch.device("cpu")


@contextmanager
def options(
    *,
    progress: bool | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
) -> Iterator[None]:
    """Set runtime choices of all functions called in a `with` block; blocks nest, and None keeps a choice.

    A choice holds in the thread or asyncio task that entered the block, as `numpy.errstate` does. It also works as a
    decorator: `@sopr_fast.options(progress=False)`.

    Args:
        progress: Show progress of work over a second: a bar on a terminal, log lines of the logger "sopr_fast"
            elsewhere. By default True.
        batch_size: Largest number of states that a policy gets at a time, by default 16384.
        device: Device on which SOPR-T clusters, trains and scores; all other methods compute on the CPU, and
            policies act where they are. By default "cpu", or the device of the model that ranks.

    Raises:
        ValueError: A choice has a wrong value, or torch cannot use the device.
    """
    changes: dict[str, Any] = {name: value for name, value in locals().items() if value is not None}
    token = _context.set(replace(current(), **changes))
    try:
        yield
    finally:
        _context.reset(token)
