"""RLDS datasets on disk: episodes in TFRecord files, as TensorFlow Datasets prepares them; read without TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.records import fields, records, varint
from .files import check_memory, check_regular, reading
from .keys import KEYS

_FEATURES = "features.json"
_FEATURES_BYTES = 8 << 20
_EPISODE_BYTES = 1 << 30
_COPIES = 3  # of all numbers that are held at once: steps, transitions, next states
_ENDS = ("is_last", "is_terminal")
_NAMES = {"reward": "rewards", "action": "actions", "observation": "observations"}  # names of RLDS -> D4RL
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # fields of tf.train.Feature


def is_rlds(path: Path) -> bool:
    """Return whether a path is a TFRecord file, or a folder with such files and their description."""
    return ".tfrecord" in path.name or (path.is_dir() and (path / _FEATURES).is_file())


def read_rlds(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Read the steps of all episodes.

    The last step of an episode holds its last state; its action and reward mean nothing (RLDS's convention), so that
    N steps give N - 1 transitions. Parts of a nested observation or action are named as `observation/position`; where
    one of them has a name of states, such as `observation/state`, it counts as the states. Images are not read.

    Args:
        path: Folder of one version of the dataset, such as `walk/1.0.0`, of which the split `train` is read where there
            are several; or one of its TFRecord files.
        wanted: Names of the arrays to read; the others give empty arrays.

    Returns:
        Arrays under D4RL's names, and parts of nested features under their own.

    Raises:
        MemoryError: The arrays are larger than the free memory, as the first episodes tell.
        ValueError: The dataset is damaged, holds no steps, or is stored in another way.
    """
    folder = path if path.is_dir() else path.parent
    shapes = _shapes(folder / _FEATURES)
    files = _files(path)
    size = sum(file.stat().st_size for file in files)
    check_memory(path, size)
    chosen = {key: name for key, name in _columns(shapes).items() if name in wanted or key in _ENDS}
    parts: dict[str, list[np.ndarray]] = {key: [] for key in chosen}
    done = held = checked = 0  # bytes in the files and in memory
    for file in files:
        with reading(file, "a TFRecord file of episodes (RLDS)"):
            for record in records(file, largest=_EPISODE_BYTES, whole=True):
                for key, values in _episode(record, {key: shapes[key] for key in chosen}).items():
                    parts[key].append(values)
                    held += values.nbytes
                done += len(record)
                if done >= 2 * checked:  # a number takes up to 8 times the bytes that it has in the file
                    checked = done
                    check_memory(file, _COPIES * held * max(size, done) // done - held)
    check_memory(path, _COPIES * held - held)
    if not any(map(len, parts["is_last"])):
        raise ValueError(f"{path}: no episodes")
    with reading(path, "an RLDS dataset"):
        arrays = {name: np.empty(0) for name in _columns(shapes).values() if name not in _ENDS}
        return arrays | _transitions({key: np.concatenate(parts.pop(key)) for key in chosen}, chosen)


def _files(path: Path) -> list[Path]:
    """Return the TFRecord files of a dataset: those of the split `train` where there are several splits."""
    if not path.is_dir():
        check_regular(path)
        return [path]
    files = sorted(path.glob("*.tfrecord*"))
    if not files:
        others = sorted({file.suffix.partition("-")[0] for file in path.iterdir() if "-of-" in file.name})
        raise ValueError(
            f"{path}: no .tfrecord files{f', but {others[0]}' if others else ''}; prepare the dataset with "
            "file_format='tfrecord'"
        )
    splits = {file: file.name.partition(".tfrecord")[0].rpartition("-")[2] for file in files}
    chosen = [file for file in files if splits[file] == "train"]
    for file in files:
        check_regular(file)
    return chosen or files


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of the numbers that every step holds, from the description of a dataset."""
    with reading(path, "the description of an RLDS dataset"):
        check_regular(path)
        if path.stat().st_size > _FEATURES_BYTES:
            raise ValueError(f"{path}: larger than {_FEATURES_BYTES:,} bytes")
        top = json.loads(path.read_text(encoding="utf-8"))["featuresDict"]["features"]
        if "steps" not in top or "sequence" not in top["steps"]:
            raise ValueError(f"{path}: no steps of episodes, so not an RLDS dataset; its features are {', '.join(top)}")
        shapes = dict(_leaves(top["steps"]["sequence"]["feature"], ""))
    if missing := [name for name in ("observation", "is_last") if not any(key.startswith(name) for key in shapes)]:
        raise ValueError(f"{path}: its steps hold no numbers named {missing[0]!r}; they hold {', '.join(shapes)}")
    return shapes


def _leaves(feature: dict[str, Any], prefix: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return name and shape of all vectors and scalars of numbers below a feature."""
    if "featuresDict" in feature:
        parts = feature["featuresDict"]["features"].items()
        return [leaf for name, part in parts for leaf in _leaves(part, f"{prefix}/{name}" if prefix else name)]
    tensor = feature.get("tensor", {})
    shape = tuple(int(size) for size in tensor.get("shape", {}).get("dimensions", ()))
    is_read = "tensor" in feature and tensor.get("dtype") != "string" and len(shape) < 2 and min(shape, default=1) > 0
    if is_read and tensor.get("encoding", "none") != "none":
        raise ValueError(f"{prefix!r} is stored in the encoding {tensor['encoding']!r}; prepare the dataset without it")
    return [(prefix, shape)] if is_read else []


def _columns(shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """Return name in the file -> name of the array: D4RL's where a part of the log is meant."""
    names = {key: _NAMES.get(key, key) for key in shapes}
    if "observation" not in shapes:
        states = next((key for name in KEYS["states"] if (key := f"observation/{name}") in shapes), None)
        return names if states is None else names | {states: "observations"}
    return names


def _episode(record: bytes, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the steps of an episode, a `tf.train.Example`: name -> (T, …) numbers."""
    steps: dict[str, np.ndarray] = {}
    for message in _messages(record, 1):  # Example.features
        for entry in _messages(message, 1):  # one entry of the map Features.feature
            key = b"".join(_messages(entry, 1)).decode("utf-8", "replace").removeprefix("steps/")
            if key in shapes:
                for value in _messages(entry, 2):
                    steps[key] = _numbers(value).reshape(-1, *shapes[key])
    if missing := [key for key in shapes if key not in steps]:
        raise ValueError(f"an episode without {missing[0]!r}")
    steps["is_last"] = steps["is_last"].astype(bool)
    steps["is_last"][-1:] = True
    counts = {key: len(values) for key, values in steps.items()}
    if len({*counts.values()}) > 1:
        raise ValueError(f"an episode whose features are of different lengths: {counts}")
    return steps


def _messages(message: bytes, wanted: int) -> list[bytes]:
    """Return the fields of one number that hold bytes."""
    return [value for number, value in fields(message) if number == wanted and isinstance(value, bytes)]


def _numbers(feature: bytes) -> np.ndarray:
    """Return the numbers in a `tf.train.Feature`, packed or one by one."""
    parts: list[np.ndarray] = []
    for kind, content in fields(feature):
        if kind == _BYTES or not isinstance(content, bytes):
            raise ValueError("bytes in place of numbers")
        for _, value in fields(content):
            if not isinstance(value, bytes):
                parts.append(np.array([_signed(value) if isinstance(value, int) else value]))
            elif kind == _FLOATS:
                parts.append(np.frombuffer(value, "<f4"))
            elif kind == _INTEGERS:
                parts.append(_integers(value))
    return np.concatenate(parts) if parts else np.empty(0)


def _integers(packed: bytes) -> np.ndarray:
    if not packed or max(packed) < 128:  # flags, mostly
        return np.frombuffer(packed, np.uint8).astype(np.int64)
    values, place = [], 0
    while place < len(packed):
        value, place = varint(packed, place)
        values.append(_signed(value))
    return np.array(values, np.int64)


def _signed(value: int) -> int:
    """Return the 64 bits of a varint as a signed integer."""
    return value - (1 << 64) if value >> 63 else value


def _transitions(steps: dict[str, np.ndarray], names: dict[str, str]) -> dict[str, np.ndarray]:
    """Return arrays by name; a step that ends its episode is the next state of the one before it alone."""
    last = steps["is_last"].reshape(-1).astype(bool)
    terminal = steps["is_terminal"].reshape(-1).astype(bool) if "is_terminal" in steps else np.zeros(len(last), bool)
    here = np.flatnonzero(~last)
    arrays = {name: steps[key][here] for key, name in names.items() if key not in _ENDS}
    for key in (key for key, name in names.items() if name == "observations"):
        states = steps[key].reshape(len(last), -1)
        arrays |= {"observations": states[here], "next_observations": states[here + 1]}
    return arrays | {"terminals": terminal[here + 1], "timeouts": last[here + 1] & ~terminal[here + 1]}
