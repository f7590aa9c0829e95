"""Policies from files and folders: names, errors, and which reader reads a file."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ...runtime.archives import open_archive
from ...runtime.files import open_regular
from ...runtime.text import list_names, one_line, printable
from ...runtime.warn import warn
from . import arrays
from .policy import Policy
from .readers import READING, Options, d3rlpy, programs, sb3, weights

Reader = Callable[[Path, Options], Sequence[Policy]]

READERS: dict[str, Reader | None] = {  # None: the content determines the reader
    ".npz": weights.read_npz,
    ".npy": arrays.read_npy,
    ".parquet": arrays.read_parquet,
    ".onnx": programs.read_onnx,
    ".safetensors": weights.read_safetensors,
    ".d3": d3rlpy.read,
    **dict.fromkeys((".pkl", ".pickle", ".zip", ".pt", ".pth", ".cleanrl_model")),
}
_PART = re.compile(
    r"(.*[-_])?(critics?|values?|vf|qf\d?|q\d|q[-_]?net(work)?s?|targets?|optim(i[sz]er)?s?)([-_]?\d)?"
    r"|target[-_](actor|policy)"
)
_WEIGHTS = (".pt", ".pth", ".safetensors", ".pkl", ".pickle")
_ERRORS = (FileNotFoundError, ValueError, OSError, ImportError, MemoryError)


def load_files(places: Sequence[Path], options: Options, *, skip: bool = False) -> list[Policy]:
    """Load the policies in files and folders, at least one.

    Folders are read recursively, in the order of the paths; hidden files and folders, links to folders, files of
    unknown suffix, and weights named as those of a critic, target or optimiser next to others are passed over. A policy
    is named by its path without suffix, relative to the folder that contains everything given. Files of one folder that
    differ in the suffix only keep it. See `sopr_fast.load_policies`.
    """
    policies: list[Policy] = []
    reason = ""
    options.take("stochastic")  # only policies in memory choose for themselves
    files = [file for path in places for file in _files(path)]
    folder = os.path.commonpath([os.path.abspath(path if path.is_dir() else path.parent) for path in places])
    for file, name in _names(files, Path(folder)).items():
        try:
            policies += _read(file, replace(options, name=name))
        except _ERRORS as error:
            if not skip:
                raise
            warn(f"skipped {error}")
            options.used.update(READING)  # it may have needed any
            reason = str(error)
    if not policies:
        where = ", ".join(map(printable, places))
        raise ValueError(f"{where}: none of the {len(files)} files could be read, such as {reason}")
    return policies


def _files(path: Path) -> list[Path]:
    """Return the file itself, or the policy files below a folder."""

    def fail(error: OSError) -> None:
        raise error

    if not path.is_dir():
        if not os.path.lexists(path):
            raise FileNotFoundError(f"{printable(path)}: no such file")
        return [path]
    files: list[Path] = []
    passed: Counter[str] = Counter()
    for parent, folders, names in os.walk(path, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(parent, name) for name in names):
            suffix = file.suffix.lower()
            if file.name.startswith(".") or suffix not in READERS or _is_companion(file):
                passed[suffix or "without suffix"] += 1
            else:
                files.append(file)
    if not files:
        seen = one_line(", ".join(f"{count} {kind}" for kind, count in passed.most_common(8)))
        raise ValueError(
            f"{printable(path)}: no policies ({', '.join(READERS)}) in this folder or below it; passed over: "
            f"{seen or 'nothing, since it holds no files'}; files that are named are read by their content"
        )
    parts = {file for file in files if file.suffix.lower() in _WEIGHTS and _PART.fullmatch(file.stem.lower())}
    whole = {file.parent for file in files if file not in parts}
    if left_out := sorted(file for file in parts if file.parent in whole):
        shown = list_names([str(file.relative_to(path)) for file in left_out])
        what = "which are critics, targets or optimisers by their names; to read one, name its file"
        warn(f"{printable(path)}: passed over {shown}, {what}")
    return sorted({*files}.difference(left_out), key=lambda file: file.parts)


def _is_companion(path: Path) -> bool:
    """Return whether a file of Stable-Baselines3 or RL Zoo belongs to a model: statistics, buffers, returns, parts."""
    if path.suffix.lower() == ".pth" and (path.parent / "_stable_baselines3_version").is_file():
        return True
    if path.suffix.lower() == ".pkl":
        return sb3.is_statistics(path) or "replaybuffer" in path.stem.replace("_", "")
    return path.name in ("evaluations.npz", "train_eval_metrics.zip")


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
        policies = list((READERS.get(file.suffix.lower()) or _by_content(file))(file, options))
        for policy in policies:
            policy.set_action_count(options.action_count)
        return policies
    except _ERRORS as error:
        kind = next(kind for kind in _ERRORS if isinstance(error, kind))
        raise kind(f"{printable(file)}: {one_line(error) or kind.__name__}") from error
    except Exception as error:  # a damaged file, or code in it, may raise nearly any type
        message = f"damaged, or of a form that cannot be opened ({type(error).__name__}: {error})"
        raise ValueError(f"{printable(file)}: {one_line(message)}") from error


def _by_content(path: Path) -> Reader:
    """Return the reader of a file whose suffix does not determine it."""
    suffix = path.suffix.lower()
    with open_regular(path) as file:
        head = file.read(10)
    if zipfile.is_zipfile(path):
        with open_archive(path) as archive:
            members = archive.namelist()
        inner = {name.partition("/")[2] for name in members}
        if "policy.pth" in members:
            return sb3.read
        if {"data", "_stable_baselines3_version"} <= {*members}:
            raise ValueError("a model without torch, such as that of sbx: load it by its class and pass {name: model}")
        if "archive_format" in inner or "serialized_exported_program.json" in members:
            advice = "pass {name: torch.export.load(path).module()}, if it was exported with a dynamic batch"
            raise ValueError(f"an exported torch program: if you trust its maker, {advice}")
        if any(name.startswith("code/") for name in inner):
            return programs.read_torchscript
        if "data.pkl" in inner:
            return weights.read_torch
        if all(name.endswith(".npy") for name in members):
            return weights.read_npz
    elif len(head) > 1 and (0x81 <= head[0] <= 0x8F or head[0] == 0xDE) and 0xA1 <= head[1] <= 0xBF:
        # A mapping of MessagePack whose first key is a word, as flax writes.
        raise ValueError("weights of a JAX agent, which do not say their network: pass a callable of states")
    elif head.startswith(b"\x93NUMPY"):
        return arrays.read_npy
    elif head[8:10] == b'{"':
        return weights.read_safetensors
    elif suffix in (".pt", ".pth", ".cleanrl_model"):
        return weights.read_torch
    elif suffix in (".pkl", ".pickle") or head.startswith(b"\x80"):
        return weights.read_pickled
    raise ValueError(
        f"expected a file of {', '.join(READERS)}; open others in Python, and pass a callable of states, or a frame or "
        "array of actions in every logged state"
    )
