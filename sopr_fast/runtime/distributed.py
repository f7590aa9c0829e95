"""The processes of `torch.distributed` that share work."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from .group import Group, LostProcessError

_on_cpu: tuple[Any, Any] | None = None  # the default group, and a group of its processes that exchanges on the CPU
_alone = contextvars.ContextVar("alone", default=False)


def current() -> Group:
    """Return the group of `torch.distributed`, or a group of only this process.

    Raises:
        RuntimeError: The processes cannot reach each other through gloo.
        ValueError: This torch has no gloo.
    """
    if _alone.get() or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Group()
    return Group(dist.get_rank(), dist.get_world_size(), _gloo())


def _gloo() -> Any:
    """Return a group of all processes that exchanges tensors on the CPU, which NCCL refuses; None for the default."""
    global _on_cpu
    if "cpu:gloo" in dist.get_backend_config():
        return None
    if not dist.is_gloo_available():
        raise ValueError("processes exchange results through gloo, which this torch lacks: install a torch with gloo")
    world = dist.group.WORLD
    if _on_cpu is None or _on_cpu[0] is not world:
        with _connecting():
            _on_cpu = world, dist.new_group(backend="gloo")
    return _on_cpu[1]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Do the work of the block in only this process, whatever other processes do."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def start() -> None:
    """Initialise the group of a process that `torchrun` started, unless it is initialised.

    Raises:
        RuntimeError: The processes cannot reach each other.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or "RANK" not in os.environ or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    with _connecting():
        dist.init_process_group("gloo")


@contextlib.contextmanager
def _connecting() -> Iterator[None]:
    """Name the remedy if processes cannot reach each other."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"processes cannot reach each other: {str(error).splitlines()[0]}; on one machine without a network, set "
            "GLOO_SOCKET_IFNAME=lo"
        ) from error


def stop() -> None:
    """Leave the group once all processes have done their work."""
    global _on_cpu
    with contextlib.suppress(LostProcessError):  # one that has done its work may have left
        current().gather_objects(None)
    _on_cpu = None
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
