"""Runtime choices: what decides where and how fast work runs, and never its result by more than rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from .checks import integer

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Context:
    """Runtime choices in force; see `options`."""

    progress: bool = True
    batch_size: int = 16384
    device: torch.device | None = None
    precision: Literal["fp32", "bf16"] | None = None
    activation_memory: int = 1 << 30


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
    precision: Literal["fp32", "bf16"] | None = None,
    activation_memory: int | None = None,
) -> Iterator[None]:
    """Set runtime choices of all functions called in a `with` block; blocks nest, and None keeps a choice.

    A choice holds in the thread or asyncio task that entered the block, as `numpy.errstate` does. It also works as a
    decorator: `@sopr_fast.options(progress=False)`.

    Args:
        progress: Show progress of work over a second: a bar on a terminal, log lines of the logger "sopr_fast"
            elsewhere. By default True.
        batch_size: Largest number of states that a policy gets at a time, by default 16384.
        device: Device that clusters, trains and scores. By default "cpu", or the device of the model that ranks.
            Policies act where they are.
        precision: Operands of matrix products when `rank` scores and the simulator trains, "fp32" or "bf16".
            By default that of the model's `Config`; for the simulator bf16 on CPUs that compute in it.
        activation_memory: Bytes of activations that a training step on the CPU keeps for its backward pass, by default
            1 GiB; the rest is computed again. The result has the same bits.

    Raises:
        ValueError: A choice has a wrong value, or torch cannot use the device.
    """
    changes: dict[str, Any] = {}
    if progress is not None:
        changes["progress"] = bool(progress)
    if batch_size is not None:
        changes["batch_size"] = integer(1)("batch_size", batch_size)
    if device is not None:
        from .devices import check_device

        changes["device"] = check_device(device)
    if precision is not None:
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision is {precision!r}; choose 'fp32' or 'bf16'")
        changes["precision"] = precision
    if activation_memory is not None:
        changes["activation_memory"] = integer(0)("activation_memory", activation_memory)
    token = _context.set(replace(current(), **changes))
    try:
        yield
    finally:
        _context.reset(token)
