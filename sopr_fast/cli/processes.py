"""Commands in several processes, as `torchrun` starts them."""

# torch takes two seconds, and one process needs none of this.
from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, NoReturn


def is_first() -> bool:
    """Return whether this process writes and prints: the first of those that torchrun started, or the only one."""
    return not _is_launched() or os.environ["RANK"] == "0"


def _is_launched() -> bool:
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


@contextlib.contextmanager
def restored_termination() -> Iterator[None]:
    """Restore what SIGTERM does, which `shared_work` changes, at the end of the block."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if _is_launched():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def shared_work() -> Iterator[None]:
    """Share the command in the block with the other processes that torchrun started, if any."""
    if not _is_launched():
        yield
        return
    from ..runtime import distributed
    from ..runtime.told import lost_before

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)  # torchrun's, so that checkpoints are written
    distributed.start()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(distributed.together())
            if not is_first():
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            yield
    except KeyboardInterrupt as error:
        if (lost := lost_before(error)) is not None:
            raise lost from None  # torchrun interrupts all others, once it has noticed too
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what remains is the message


def leave(status: int) -> NoReturn:
    """End the process, in a group without the interpreter's own end, which can abort on gloo's last threads."""
    if not _is_launched():
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def speaks_of(error: BaseException) -> bool:
    """Return whether this process tells the user of an error, which all processes may have."""
    if not _is_launched():
        return True
    from ..runtime.told import told_by

    return told_by(error) in (None, int(os.environ["RANK"]))
