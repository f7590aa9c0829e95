"""Fork while other threads rank: every child must be able to rank and to end."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from typing import Any

import torch

from . import problem


def fork_while_ranking(forks: int, threads: int = 2, seconds: float = 20) -> dict[str, Any]:
    """Fork `forks` times while `threads` threads rank; each child ranks once.

    A child that hangs prints its stack.

    Returns:
        Counts: forks, children still running after `seconds`, and children that failed.
    """
    ranker = problem.fit()
    candidates = {**problem.policies(problem.GAINS[:4] + 0.01), "module": _module()}
    expected = ranker.rank(candidates).scores
    stop = threading.Event()

    def rank() -> None:
        while not stop.is_set():
            ranker.rank(candidates)

    ranking = [threading.Thread(target=rank, daemon=True) for _ in range(threads)]
    for thread in ranking:
        thread.start()
    counts = {"forks": 0, "hang": 0, "failed": 0}
    while counts["forks"] < forks:
        counts["forks"] += 1
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(seconds / 2)
            os._exit(int(not (ranker.rank(candidates).scores == expected).all()))
        status = _wait(pid, seconds)
        counts["hang" if status is None else "failed"] += status != 0
    stop.set()
    for thread in ranking:
        thread.join()
    return counts


def _module() -> torch.nn.Module:
    """Return a policy that a call switches to eval mode."""
    linear = torch.nn.Linear(4, 2)
    torch.nn.init.ones_(linear.weight)
    return torch.nn.Sequential(linear, torch.nn.Dropout(), torch.nn.Tanh()).train()


def _wait(pid: int, seconds: float) -> int | None:
    """Return a child's exit status, or None where it had to be killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
