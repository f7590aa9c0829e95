"""Policies from files and folders: options, names, errors, and which reader reads a file."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from ... import formats
from ...runtime.containers import member_names
from ...runtime.files import open_regular
from ...runtime.text import one_line, printable
from .policy import Policy

_ERRORS = (FileNotFoundError, ValueError, OSError, ImportError, MemoryError)


@dataclass(frozen=True)
class ReadingOptions:
    """Options of `sopr_fast.load_policies`, and the name of the policy."""

    name: str = ""
    activation: str | None = None
    module: Any = None
    key: str | None = None
    trust: bool = False


def load_files(places: Sequence[Path], options: ReadingOptions) -> list[Policy]:
    """Load the policies in files and folders, at least one.

    Folders are read recursively, in the order of the paths; hidden files and folders, links to folders and files of
    unknown suffix are passed over. Paths may hold `*`, `?` and `**`. A policy is named by its path without suffix,
    relative to the folder that contains everything given. See `sopr_fast.load_policies`.
    """
    files, folders = list[Path](), list[Path]()
    for place in places:
        files += (own := _files(place))
        folders += [place] if place.is_dir() else [file.parent for file in own]
    top = os.path.commonpath([*map(os.path.abspath, folders)])
    policies = []
    for path, file in {os.path.abspath(file): file for file in files}.items():  # a file given twice counts once
        name = Path(os.path.relpath(path, top)).with_suffix("").as_posix()
        policies += _read(file, replace(options, name=name))
    return policies


def _files(path: Path) -> list[Path]:
    """Return the file itself, those of a pattern, or the policy files below a folder."""
    if not path.is_dir():
        if os.path.lexists(path):
            return [path]
        if found := sorted(glob.glob(str(path), recursive=True)):
            return [file for each in map(Path, found) for file in _files(each)]
        raise FileNotFoundError(f"{printable(path)}: no such file")
    files: list[Path] = []
    for parent, folders, names in os.walk(path, onerror=_fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = (Path(parent, name) for name in names if not name.startswith("."))
        files += [file for file in visible if file.suffix.lower() in formats.POLICIES and not _is_companion(file)]
    if not files:
        raise ValueError(f"{printable(path)}: no policies ({', '.join(formats.POLICIES)}) in this folder or below it")
    return sorted(files, key=lambda file: file.parts)


def _fail(error: OSError) -> NoReturn:
    raise error


def _is_companion(path: Path) -> bool:
    """Return whether a file of Stable-Baselines3 or RL Zoo belongs to a model: statistics, buffers, returns, parts."""
    if path.suffix.lower() == ".pth" and (path.parent / "_stable_baselines3_version").is_file():
        return True
    if path.suffix.lower() == ".pkl":
        stem = path.stem.lower().replace("_", "")
        return "vecnormalize" in stem or "replaybuffer" in stem
    return path.name in ("evaluations.npz", "train_eval_metrics.zip")


def _read(file: Path, options: ReadingOptions) -> list[Policy]:
    """Read one file, with errors of the documented types that name it."""
    where = f"{printable(file)}: "
    try:
        return list(_reader(file)(file, options))
    except _ERRORS as error:
        kind = next(kind for kind in _ERRORS if isinstance(error, kind))
        raise kind(where + (one_line(error).removeprefix(where) or "damaged, or larger than the memory")) from error
    except Exception as error:  # a damaged file, or code in it, may raise nearly any type
        what = f"damaged, or of a form that cannot be opened; leave it out ({type(error).__name__}: {error})"
        raise ValueError(where + one_line(what)) from error


def _reader(path: Path) -> Any:
    """Return the reader of a file by its suffix, or, of a program of torch, by its content."""
    suffix = path.suffix.lower()
    with open_regular(path) as file:
        head = file.read(2)
    if len(head) > 1 and (0x81 <= head[0] <= 0x8F or head[0] == 0xDE) and 0xA1 <= head[1] <= 0xBF:
        # A mapping of MessagePack whose first key is a word, as flax writes.
        raise ValueError("weights of a JAX agent, which do not say their network: pass a callable of states")
    if head == b"PK" and any(name.partition("/")[2].startswith("code/") for name in member_names(path)):
        suffix = ".torchscript"
    if suffix not in formats.POLICIES:
        raise ValueError(
            f"expected a file of {', '.join(formats.POLICIES)}, or rules.py:NAME in the shell; open "
            "others in Python, and pass a callable of states, or an array of actions in every logged state"
        )
    return formats.load(formats.POLICIES[suffix])
