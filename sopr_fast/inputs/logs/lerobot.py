"""LeRobot datasets on disk, versions 2.0 to 3.0 of the format: parquet files below `data/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .files import check_regular, reading
from .tables import read_parquet

_INFO = "meta/info.json"
_INFO_BYTES = 8 << 20
_STATES = ("observation.state", "observation.environment_state")
_COLUMNS = (*_STATES, "action", "next.reward", "next.done", "episode_index", "index")


def is_lerobot(folder: Path) -> bool:
    """Return whether a folder is a LeRobot dataset."""
    return (folder / _INFO).is_file() and (folder / "data").is_dir()


def read_lerobot(folder: Path) -> dict[str, np.ndarray]:
    """Read the steps of all episodes.

    States are `observation.state`, followed by `observation.environment_state` where there is one. Images and videos
    are not read. Rewards and ends are `next.reward` and `next.done`, which recorded demonstrations often lack.

    Args:
        folder: Folder of the dataset.

    Returns:
        Arrays under D4RL's names; `dones` in place of terminals where every episode but the last ends by one.

    Raises:
        ImportError: pyarrow is not installed.
        MemoryError: The data is larger than the free memory.
        ValueError: The dataset is damaged, of an older version, or has no `observation.state`.
    """
    info, features = folder / _INFO, {}
    with reading(info, "the description of a LeRobot dataset"):
        check_regular(info)
        if info.stat().st_size > _INFO_BYTES:
            raise ValueError(f"{info}: larger than {_INFO_BYTES:,} bytes")
        content: dict[str, Any] = json.loads(info.read_text(encoding="utf-8"))
        version, features = str(content.get("codebase_version", "")), dict(content["features"])
    if not version.startswith(("v2.", "v3.")):
        raise ValueError(f"{info}: version {version!r} of LeRobot's format, expected v2.0 to v3.0; convert it")
    if _STATES[0] not in features or "action" not in features:
        raise ValueError(f"{info}: expected the features observation.state and action, found {', '.join(features)}")
    files = sorted((folder / "data").glob("chunk-*/*.parquet"))
    if not files:
        raise ValueError(f"{folder}: no data/chunk-*/*.parquet; download the data beside meta/")
    for file in files:
        check_regular(file)
    parts = [read_parquet(file, [name for name in _COLUMNS if name in features]) for file in files]
    for file, part in zip(files, parts, strict=True):
        if absent := [key for key in _COLUMNS if key in features and key not in part]:
            raise ValueError(f"{file}: no column {absent[0]!r}, which {_INFO} announces")
    with reading(folder, "a LeRobot dataset"):
        return _steps({key: np.concatenate([part[key] for part in parts]) for key in _COLUMNS if key in features})


def _steps(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = np.lexsort((columns["index"], columns["episode_index"]))
    columns = {key: values[order] for key, values in columns.items()}
    states = [columns[key].reshape(len(order), -1) for key in _STATES if key in columns]
    arrays = {"observations": np.concatenate(states, 1), "actions": columns["action"].reshape(len(order), -1)}
    if "next.reward" in columns:
        arrays["rewards"] = columns["next.reward"].reshape(-1)
    done = columns["next.done"].reshape(-1).astype(bool) if "next.done" in columns else np.zeros(len(order), bool)
    last = np.append(np.diff(columns["episode_index"].reshape(-1)) != 0, True)
    cut = last & ~done
    if done.any() and not cut[:-1].any():  # all episodes are done, by a time limit perhaps
        return arrays | {"dones": done}
    return arrays | {"terminals": done, "timeouts": cut}
