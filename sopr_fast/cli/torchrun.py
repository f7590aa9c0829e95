"""Commands in several processes, as `torchrun` starts them."""

# torch takes two seconds, and one process needs none of this.
from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

_SECONDS = 2  # after the end of another process: torchrun blames the first error, by whole seconds


def _is_launched() -> bool:
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def run(command: Callable[[], Any]) -> None:
    """Run a command; if torchrun started this process, share its work with the others.

    torchrun names the process that failed first, and its error.
    """
    if not _is_launched():
        command()
        return
    from torch.distributed.elastic.multiprocessing.errors import record

    from ..runtime import distributed

    @record
    def work() -> None:
        distributed.start()
        try:
            command()
        except distributed.LostProcessError:
            time.sleep(_SECONDS)
            raise
        distributed.stop()

    with contextlib.nullcontext() if os.environ["RANK"] == "0" else contextlib.redirect_stdout(io.StringIO()):
        work()


def leave(status: int) -> NoReturn:
    """End the process; in a group without the end of the interpreter, which can abort on gloo's last threads."""
    if not _is_launched():
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
