"""Locks of a process that forks."""

from __future__ import annotations

import os
import threading


def fork_safe_lock() -> threading.RLock:
    """Return a lock that forks wait for: a child finds it free, and what it guards in a whole state.

    Hold it briefly, and take no other lock meanwhile.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_child=lock.release, after_in_parent=lock.release)
    return lock
