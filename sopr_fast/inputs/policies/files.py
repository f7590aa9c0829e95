"""Policies from files and folders."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ...runtime.text import one_line, printable
from ...runtime.warn import warn
from .actor import Actor
from .policy import Policy
from .readers import BY_SUFFIX, is_companion, reader_of
from .readers.options import READING, Options

_ERRORS = (FileNotFoundError, ValueError, OSError, ImportError, MemoryError)
_KINDS_SHOWN = 8


def load_files(
    places: Sequence[Path], options: Options, *, skip: bool = False, relative_to: Path | None = None
) -> dict[str, Policy]:
    """Load the policies in files and folders, by name.

    Folders are read recursively, in the order of the paths; hidden files and folders, links to folders, and files of
    unknown suffix are passed over. A policy is named by its path without suffix, relative to the folder that contains
    everything given. Files of one folder that differ in the suffix only keep it. A stack adds "-000", "-001", … to the
    name.

    Args:
        places: Files and folders, at least one.
        options, skip: See `sopr_fast.load_policies`.
        relative_to: Folder to which names are relative, instead of the one that contains everything given.

    Raises and warns as `sopr_fast.load_policies` does.
    """
    policies: dict[str, Policy] = {}
    reason = ""
    files = [file for path in places for file in _files(path)]
    for file, name in _names(files, relative_to or common_folder(places)).items():
        try:
            loaded = _read(file, replace(options, name=name))
        except _ERRORS as error:
            if not skip:
                raise
            warn(f"skipped {error}")
            options.used.update(READING)  # it might have needed any
            reason = str(error)
            continue
        for policy in loaded:
            if policy.name in policies:
                raise ValueError(
                    f"{printable(file)}: another file has a policy named {policy.name!r}; rename one of the files"
                )
            policies[policy.name] = policy
    if not policies:
        where = ", ".join(map(printable, places))
        raise ValueError(f"{where}: none of the {len(files)} files could be read, such as {reason}")
    return policies


def common_folder(paths: Iterable[Path]) -> Path:
    """Return the deepest folder that contains all the files and folders."""
    return Path(os.path.commonpath([os.path.abspath(path if path.is_dir() else path.parent) for path in paths]))


def _files(path: Path) -> list[Path]:
    """Return the file itself, or the policy files below a folder."""
    if not path.is_dir():
        if not os.path.lexists(path):
            raise FileNotFoundError(f"{printable(path)}: no such file")
        return [path]
    passed: Counter[str] = Counter()
    files = sorted(_walk(path, passed), key=lambda file: file.parts)
    if not files:
        seen = ", ".join(f"{count} {kind}" for kind, count in passed.most_common(_KINDS_SHOWN))
        raise ValueError(
            f"{printable(path)}: no policies ({', '.join(BY_SUFFIX)}) in this folder or below it; passed over: "
            f"{one_line(seen) or 'nothing, since it holds no files'}; files that are named are read by their content"
        )
    return files


def _walk(folder: Path, passed: Counter[str]) -> Iterator[Path]:
    """Yield the policy files below a folder, and count the others by kind."""

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            if name.startswith("."):
                passed["hidden"] += 1
            elif file.suffix.lower() not in BY_SUFFIX:
                passed[file.suffix.lower() or "without suffix"] += 1
            elif is_companion(file):
                passed["files that belong to a policy (statistics, buffers, optimisers)"] += 1
            else:
                yield file


def _names(files: Iterable[Path], folder: Path) -> dict[Path, str]:
    """Return the name of every file, relative to the folder; a file given twice counts once."""
    relative = {Path(os.path.abspath(file)): file for file in files}
    stems = {path: path.relative_to(folder).with_suffix("").as_posix() for path in relative}
    counts = Counter(stems.values())
    return {
        file: stems[path] if counts[stems[path]] == 1 else path.relative_to(folder).as_posix()
        for path, file in relative.items()
    }


def _read(file: Path, options: Options) -> list[Policy]:
    """Read one file, with errors of the documented types that name it."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise ValueError("not a regular file")
        policies = list(reader_of(file)(file, options))
        count, actors = options.action_count, [policy for policy in policies if isinstance(policy, Actor)]
        if count is not None and any(actor.head == "action" for actor in actors):
            raise ValueError(f"its actions are continuous, but action_count={count}: leave it out")
        if count is not None and (other := next((a.action_dim for a in actors if a.action_dim != count), None)):
            raise ValueError(
                f"it has {other} discrete actions, but action_count={count}: pass {other}, or, if it chooses several "
                "actions at once, a callable of states"
            )
        return policies
    except _ERRORS as error:
        kind = next(kind for kind in _ERRORS if isinstance(error, kind))
        raise kind(f"{printable(file)}: {one_line(error) or kind.__name__}") from error
    except Exception as error:  # a damaged file, or code in it, may raise nearly any type
        message = f"damaged, or of a form that cannot be opened ({type(error).__name__}: {error})"
        raise ValueError(f"{printable(file)}: {one_line(message)}") from error
