"""`sopr-fast`: train and rank on files, run the embedded example, show what is installed."""

# Commands import what they need: torch takes two seconds, and `--help` needs none of it.
from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from .._version import __version__
from ..runtime import options as runtime
from ..runtime.process import is_first
from ..runtime.text import counted, printable
from .arguments import Parser, add_command, read_log, read_policies
from .flags import with_flags
from .log_commands import add_commands as add_selection_commands
from .model_commands import add_commands as add_ranking_commands

_SECONDS = 2  # after the end of another process: torchrun blames the first error, by whole seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command with its options, by default those of the process, and return the exit code.

    It is 0; 2 after wrong input, with one line on stderr; 130 after an interrupt; 3 if `--exit-code` was given and the
    verdict is to measure.
    """
    options = _parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: not every encoding has ±, or all names
    with warnings.catch_warnings(), _log_to_stderr():
        warnings.showwarning = lambda message, *_: _complain("warning", message)
        status = 0
        try:
            status = _run(options)
            print(end="", flush=True)
        except BrokenPipeError:
            pass  # the reader, such as `head`, has closed the pipe
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

    def command() -> int:
        with runtime.options(device=getattr(options, "device", None)):
            return options.run(options) or 0

    if not _is_launched():
        return command()
    from torch.distributed.elastic.multiprocessing.errors import record

    from ..runtime import distributed

    @record
    def work() -> int:
        distributed.start()
        try:
            status = command()
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


@contextlib.contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Show the progress of long work if there is no terminal for a bar."""
    log, handler = logging.getLogger("sopr_fast"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("sopr-fast: %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="sopr-fast", description="Rank policies before any is deployed.")
    parser.add_argument("--version", action="version", version=f"sopr_fast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="demo | fit | rank | evaluate | select | estimate | info")

    about = "rank and select embedded policies, and write files for the examples of other commands"
    demo = add_command(commands, "demo", about, "--quick", _demo)
    demo.add_argument("--quick", action="store_true", help="a quarter of the training")
    demo.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="where to write (default: out)")

    add_ranking_commands(commands)
    add_selection_commands(commands)

    about = "describe the installation, a model or a log"
    options = "policies --columns --ends --sort --max-episode-steps"
    info = add_command(commands, "info", about, "out/pendulum/log.npz", _info, others=options)
    info.add_argument("path", type=Path, nargs="?", metavar="FILE", help="model, or log of states or transitions")
    info.usage = "%(prog)s [FILE] [options]"
    return parser


def _demo(options: argparse.Namespace) -> None:
    from .demo import demo

    demo(options.out, quick=options.quick)


def _info(options: argparse.Namespace) -> None:
    if options.path is None:
        from ..native import build_info

        info = build_info()
        why_no_cuda, modules = info.pop("why_no_cuda"), info.pop("modules")
        for name, value in (info | {f"modules.{name}": path or why_no_cuda for name, path in modules.items()}).items():
            text = ", ".join(value) if isinstance(value, list) else value
            print(f"{name:<28} {text or 'none'}")
        return
    from ..inputs.logs import describe, load_transitions
    from ..inputs.logs.sources import is_log

    if is_log(options.path):
        print(describe(log := read_log(options.path, options)))
        if options.policies is not None:
            from ..estimators.log import read

            policies, log = read_policies(options), load_transitions(log)
            with warnings.catch_warnings(action="ignore"):
                facts = read(policies.for_log(log.source_count, log), log)[1].facts
            print(*facts or [f"actions of {counted(len(policies), 'policy')} are on the scales of the log"], sep="\n")
        return
    from ..sopr.ranker import load

    try:
        ranker = load(options.path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{options.path}: no such file; info describes models and logs") from None
    except ValueError as error:
        raise ValueError(f"{error}; info describes models and logs") from error
    print(ranker)
    for name, value in {"seed": ranker.seed, **ranker.config.to_dict()}.items():
        print(f"{name:<20} {value}")
