"""What this process is: one of several, the kernel of a notebook, one that forks."""

from __future__ import annotations

import os
import sys
import threading


def is_first() -> bool:
    """Return whether this process writes, prints and shows progress for its group; torch is not imported for this."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return True
    return distributed.get_rank() == 0


def in_notebook() -> bool:
    """Return True if IPython's kernel runs this process, so that what cells return and plot is shown."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "IPKernelApp" in shell.config


def fork_safe_lock() -> threading.RLock:
    """Return a lock that forks wait for: a child finds it free, and what it guards in a whole state.

    Hold it briefly, and take no other lock meanwhile.
    """
    lock = threading.RLock()
    os.register_at_fork(before=lock.acquire, after_in_child=lock.release, after_in_parent=lock.release)
    return lock
