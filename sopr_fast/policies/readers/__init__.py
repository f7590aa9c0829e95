"""Readers of policy files, one a format, and the choice between them by suffix and content."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

from ..policy import Policy
from . import d3rlpy, d4rl, npy, npz, programs, sb3, sequential, torch_files
from .options import Options

Reader = Callable[[Path, Options], list[Policy]]

BY_SUFFIX: dict[str, Reader | None] = {  # None: its content tells
    ".npz": npz.read,
    ".npy": npy.read,
    ".onnx": programs.read_onnx,
    ".safetensors": sequential.read_safetensors,
    ".d3": d3rlpy.read,
    ".pkl": d4rl.read,
    ".pickle": d4rl.read,
    ".zip": None,
    ".pt": None,
    ".pth": None,
    ".pt2": None,
}


def reader_of(path: Path) -> Reader:
    """The reader of a file.

    Raises:
        ValueError: it is of no known kind.
    """
    reader = BY_SUFFIX.get(path.suffix.lower()) or _by_content(path)
    if reader is None:
        raise ValueError(
            "expected an .npz file of layers, an .npy file of actions, or a policy in "
            f"{', '.join(s for s in BY_SUFFIX if s not in ('.npz', '.npy'))}"
        )
    return reader


def is_companion(path: Path) -> bool:
    """Whether a file of a known suffix belongs to a policy beside it.

    Those are Stable-Baselines3's statistics and replay buffers, and the returns that its EvalCallback measured.
    """
    if path.suffix.lower() == ".pkl":
        return any(part in path.stem.replace("_", "") for part in ("vecnormalize", "replaybuffer"))
    return path.name == "evaluations.npz"


def _by_content(path: Path) -> Reader | None:
    with path.open("rb") as file:
        head = file.read(10)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return _by_members(archive.namelist())
    if head.startswith(b"\x93NUMPY"):
        return npy.read
    if head[8:10] == b'{"':
        return sequential.read_safetensors
    of_torch = path.suffix.lower() in (".pt", ".pth")
    if head.startswith(b"\x80") and not of_torch:
        return d4rl.read
    return torch_files.read if of_torch else None


def _by_members(members: list[str]) -> Reader | None:
    inner = {name.partition("/")[2] for name in members}
    if "policy.pth" in members:
        return sb3.read
    if "archive_format" in inner or "serialized_exported_program.json" in members:
        return programs.read_exported
    if any(name.startswith("code/") for name in inner):
        return programs.read_torchscript
    if "data.pkl" in inner:
        return torch_files.read
    return npz.read if all(name.endswith(".npy") for name in members) else None
