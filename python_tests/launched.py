"""A command in a process of `torchrun`, with an event in its third step of training.

python -m torch.distributed.run --nproc-per-node=2 launched.py EVENT COMMAND...
"""

import os
import signal
import sys
import threading

from processes import TIMEOUT

from sopr_fast.cli.main import main
from sopr_fast.cli.torchrun import leave
from sopr_fast.runtime.distributed import Group

RANK = int(os.environ["RANK"])
SUM_BLOCKS = Group.sum_blocks
steps = 0


def interrupt() -> None:
    """Send Ctrl-C to torchrun, and wait for its consequences."""
    if RANK == 1:
        os.kill(os.getppid(), signal.SIGINT)
    threading.Event().wait(TIMEOUT)


def fail() -> None:
    """Raise an error in process 1."""
    if RANK == 1:
        raise ValueError("out of luck")


def sum_blocks(self, *arguments):
    """Count steps, of each of which gradients are summed once."""
    global steps
    steps += 1
    if steps == 3:
        {"interrupt": interrupt, "fail": fail}[sys.argv[1]]()
    return SUM_BLOCKS(self, *arguments)


if __name__ == "__main__":
    Group.sum_blocks = sum_blocks
    leave(main(sys.argv[2:]))
