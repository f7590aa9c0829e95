"""Readers of policy files, one for each format; suffix and content determine which one reads a file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ....runtime.archives import open_archive
from ....runtime.files import open_regular
from ..policy import Policy
from . import actions, d3rlpy, npz, onnx_torchscript, sb3, torch_files, vecnormalize
from .options import Options

Reader = Callable[[Path, Options], Sequence[Policy]]

BY_SUFFIX: dict[str, Reader | None] = {  # None: the content determines the reader
    ".npz": npz.read,
    ".npy": actions.read_npy,
    ".parquet": actions.read_parquet,
    ".onnx": onnx_torchscript.read_onnx,
    ".safetensors": torch_files.read_safetensors,
    ".d3": d3rlpy.read,
    ".pkl": None,
    ".pickle": None,
    ".zip": None,
    ".pt": None,
    ".pth": None,
    ".pt2": None,
    ".cleanrl_model": None,
}


def reader_of(path: Path) -> Reader:
    """Return the reader of a file.

    Raises:
        ValueError: The file is of no known kind.
    """
    reader = BY_SUFFIX.get(path.suffix.lower()) or _by_content(path)
    if reader is None:
        raise ValueError(
            "expected an .npz file of layers, an .npy or .parquet file of actions, or a policy in "
            f"{', '.join(s for s in BY_SUFFIX if s not in ('.npz', '.npy', '.parquet'))}; open others in Python, and "
            "pass a callable of states, or a frame or array of actions in every logged state"
        )
    return reader


def is_companion(path: Path) -> bool:
    """Return whether a file of a known suffix belongs to a policy next to it.

    These are statistics and replay buffers of Stable-Baselines3, the returns that its EvalCallback measured, the
    unpacked model and the metrics that RL Zoo uploads next to a model.
    """
    if path.suffix.lower() == ".pth" and (path.parent / "_stable_baselines3_version").is_file():
        return True
    if path.suffix.lower() == ".pkl":
        return vecnormalize.is_statistics(path) or "replaybuffer" in path.stem.replace("_", "")
    return path.name in ("evaluations.npz", "train_eval_metrics.zip")


def _by_content(path: Path) -> Reader | None:
    with open_regular(path) as file:
        head = file.read(10)
    if zipfile.is_zipfile(path):
        with open_archive(path) as archive:
            return _by_members(archive.namelist())
    if len(head) > 1 and (0x81 <= head[0] <= 0x8F or head[0] == 0xDE) and 0xA1 <= head[1] <= 0xBF:
        raise ValueError(  # a mapping of MessagePack whose first key is a word, as flax writes
            "weights of a JAX agent, which do not say their network: pass a callable of states that applies it, or an "
            ".npy file of its actions in every logged state"
        )
    if head.startswith(b"\x93NUMPY"):
        return actions.read_npy
    if head[8:10] == b'{"':
        return torch_files.read_safetensors
    is_torch = path.suffix.lower() in (".pt", ".pth", ".cleanrl_model")
    if path.suffix.lower() in (".pkl", ".pickle") or (head.startswith(b"\x80") and not is_torch):
        return torch_files.read_pickled
    return torch_files.read if is_torch else None


def _by_members(members: list[str]) -> Reader | None:
    inner = {name.partition("/")[2] for name in members}
    if "policy.pth" in members:
        return sb3.read
    if {"data", "_stable_baselines3_version"} <= {*members}:
        raise ValueError("a model without torch, such as that of sbx: load it by its class and pass {name: model}")
    if "archive_format" in inner or "serialized_exported_program.json" in members:
        return onnx_torchscript.read_exported
    if any(name.startswith("code/") for name in inner):
        return onnx_torchscript.read_torchscript
    if "data.pkl" in inner:
        return torch_files.read
    return npz.read if all(name.endswith(".npy") for name in members) else None
