"""A command in a process of `torchrun`, with an event in its third step of training.

python -m torch.distributed.run --nproc-per-node=2 launched.py EVENT COMMAND...
"""

import contextlib
import os
import signal
import sys
import threading

from processes import TIMEOUT

from sopr_fast.cli.main import main
from sopr_fast.cli.processes import leave
from sopr_fast.runtime import group

RANK = int(os.environ["RANK"])
steps = 0


def interrupt() -> None:
    """Send Ctrl-C to torchrun, and wait for its consequences."""
    if RANK == 1:
        os.kill(os.getppid(), signal.SIGINT)
    threading.Event().wait(TIMEOUT)


def kill(victim: int = 1) -> None:
    """Kill a process."""
    if victim == RANK:
        os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    """Raise an error in process 1."""
    if RANK == 1:
        raise ValueError("out of luck")


def watch(name: str, sent: int) -> contextlib.AbstractContextManager[None]:
    """Count steps, of each of which gradients are summed once."""
    global steps
    steps += name in ("sum", "scatter")
    if steps == 3:
        {"interrupt": interrupt, "kill": kill, "kill-first": lambda: kill(0), "fail": fail}[sys.argv[1]]()
    return contextlib.nullcontext()


if __name__ == "__main__":
    group.watch = watch
    leave(main(sys.argv[2:]))
