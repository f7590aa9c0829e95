"""`sopr-fast`: train and rank on files, run the embedded example, show what is installed."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from ..runtime import options as runtime
from ..runtime.process import is_first
from ..runtime.text import printable
from .arguments import make_parser
from .flags import with_flags

CLOSED_PIPE = 141  # as the shell says of a command whose reader, such as `head`, has ended
_SECONDS = 2  # after the end of another process: torchrun blames the first error, by whole seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command with its options, by default those of the process, and return the exit code.

    It is 0; 2 after wrong input, with one line on stderr; 130 after an interrupt; 141 if the reader of stdout closed
    it; 3 if `--exit-code` was given and the verdict is to measure.
    """
    options = make_parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: not every encoding has ±, or all names
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: _complain("warning", message)
        try:
            status = _run(options)
            print(end="", flush=True)
        except BrokenPipeError:
            return CLOSED_PIPE
        except (ValueError, TypeError, OSError, ImportError, MemoryError, RuntimeError) as error:
            if is_first():
                _complain("error", error)
            return 2
        except KeyboardInterrupt as interrupt:
            if is_first():
                _complain("interrupted", interrupt)
            return 130
        finally:
            try:
                print(end="", flush=True)
            except OSError:  # leave nothing in stdout that fails when Python closes it
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _is_launched() -> bool:
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def _run(options: argparse.Namespace) -> int:
    """Run a command and return its exit code; if torchrun started this process, share its work, and report errors."""

    def run() -> int:
        command = getattr(import_module("sopr_fast.cli.commands"), options.command)  # `--help` needs none of them
        with runtime.options(device=getattr(options, "device", None)):
            return command(options) or 0

    if not _is_launched():
        return run()
    from torch.distributed.elastic.multiprocessing.errors import record

    from ..runtime import distributed

    @record
    def work() -> int:
        distributed.start()
        try:
            status = run()
        except distributed.LostProcessError:
            time.sleep(_SECONDS)
            raise
        distributed.stop()
        return status

    with contextlib.nullcontext() if os.environ["RANK"] == "0" else contextlib.redirect_stdout(io.StringIO()):
        return work() or 0


def leave(status: int) -> NoReturn:
    """End the process; in a group without the end of the interpreter, which can abort on gloo's last threads."""
    if not _is_launched():
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _complain(kind: str, message: object) -> None:
    text = with_flags(printable(" ".join(str(message).split())))
    print(f"sopr-fast: {kind}{': ' if text else ''}{text}", file=sys.stderr)
