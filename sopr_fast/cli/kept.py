"""Where commands keep what they trained, so that a later call with other policies or returns need not train again."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .._version import __version__
from ..runtime.process import is_first
from .flags import FLAGS

_OF_POLICIES = ("--module", "--key", "--activation", "--action-count")
_FLAGS = (*FLAGS["log"], *_OF_POLICIES, "--seed", "--device", "--simulator", "--set")


@contextlib.contextmanager
def keeping(options: argparse.Namespace, *, policies: Sequence[str] = ()) -> Iterator[Path | None]:
    """Yield the folder to keep training in: that of `--checkpoints`, else one of the user's cache.

    The latter is one for each log, as it is now, and each set of options on which training depends; if it depends on
    policies, also for each set of these names and their files. It is named if something is kept there, else removed;
    None if it cannot be made.
    """
    if options.checkpoints is not None:
        yield options.checkpoints
        return
    files = [options.log, *(options.policies if policies else ())]
    given = [str(getattr(options, flag[2:].replace("-", "_"), None)) for flag in _FLAGS]
    key = hashlib.sha256(
        repr([__version__, *given, *policies, *map(_state, files)]).encode(errors="surrogatepass")
    ).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sopr_fast"
    folder = cache / f"{Path(str(options.log)).stem[:40]}-{key[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # such as a home that is read-only
        yield None
        return
    try:
        yield folder
    finally:
        if is_first() and any(folder.iterdir()):
            print(f"sopr-fast: what was trained is kept in {folder}; --checkpoints names another", file=sys.stderr)
        elif is_first():
            folder.rmdir()


def _state(path: str | Path) -> list[tuple[str, int, int]]:
    """Return the paths, times and sizes of a file, or of those in a folder; nothing of what is neither."""
    place = Path(path).absolute()
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    states = [(str(file), file.stat()) for file in files if file.is_file()]
    return [(name, state.st_mtime_ns, state.st_size) for name, state in states]
