"""The processes of `torch.distributed` that share work, and blocks of code that all run, or one alone."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from . import told
from .group import Group

_beside: tuple[Any, Any] | None = None  # default group, and ours on the CPU
_alone = contextvars.ContextVar("alone", default=False)


def current() -> Group:
    """Return the group of `torch.distributed`, or a group of this process alone.

    Raises:
        RuntimeError: The processes cannot reach each other through gloo.
        ValueError: This torch has no gloo.
    """
    if _alone.get() or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return Group()
    return Group(dist.get_rank(), dist.get_world_size(), _on_cpu())


def _on_cpu() -> Any:
    """Return a group of all processes that exchanges tensors on the CPU: the default one, or one of our own beside it.

    NCCL and others refuse tensors on the CPU, and notice a killed process after minutes only.
    """
    global _beside
    if "cpu:gloo" in dist.get_backend_config():
        return None
    if not dist.is_gloo_available():
        raise ValueError("processes exchange results through gloo, which this torch lacks: install a torch with gloo")
    world = dist.group.WORLD
    if _beside is None or _beside[0] is not world:
        with _reaching():
            _beside = world, dist.new_group(backend="gloo")
    return _beside[1]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Do the work of the block in this process alone, whatever other processes do."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Run a block in all processes: an error in one is raised in all, and all leave the block at the same time."""
    group = current()
    if group.count == 1:
        yield
        return
    try:
        yield
    except BaseException as error:
        if not told.is_told(error):
            group.tell(error)
        raise
    group.end()


def start() -> None:
    """Initialise the group of a process that `torchrun` started, if nobody has.

    Raises:
        RuntimeError: The processes cannot reach each other.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or "RANK" not in os.environ or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    with _reaching():
        store, rank, count = next(iter(dist.rendezvous("env://")))
        dist.init_process_group("gloo", store=dist.PrefixStore("sopr_fast", store), rank=rank, world_size=count)
        told.store = store


@contextlib.contextmanager
def _reaching() -> Iterator[None]:
    """Name the remedy where processes cannot reach each other."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(
            f"processes cannot reach each other: {told.reason(error)}; on one machine without a network, set "
            "GLOO_SOCKET_IFNAME=lo"
        ) from error


def is_first() -> bool:
    """Return whether this process writes, prints and shows progress."""
    return not dist.is_available() or not dist.is_initialized() or dist.get_rank() == 0


def stop() -> None:
    """Leave the group."""
    global _beside
    _beside = None
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
