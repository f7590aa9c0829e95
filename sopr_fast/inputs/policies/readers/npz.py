"""`.npz` files of layers: one actor, or a stack of them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....runtime.archives import open_archive, read_members
from ...logs.keys import KEYS, check_is_policy
from ..actor import Actor
from .options import Options
from .patterns import is_read
from .weights import from_weights


def read(path: Path, options: Options) -> list[Actor]:
    """Read the actors; where neither file nor options say it, layers act by ReLU and the action goes through tanh.

    Raises:
        ValueError: The file is damaged, or its arrays are not the layers of an actor.
    """
    try:
        with open_archive(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            is_layers = any(name.endswith(".weight") for name in names)
            members = read_members(archive, [f"{name}.npy" for name in names if is_layers and is_read(name)])
        arrays: dict[str, Any] = {name.removesuffix(".npy"): _array(content) for name, content in members.items()}
    except (ValueError, KeyError, EOFError) as error:
        raise ValueError(f"damaged, or not an .npz file of plain arrays ({error})") from error
    if not is_layers:
        check_is_policy(set(names) - {*KEYS["actions"]})
    arrays |= {key: None for key in names if key not in arrays}
    options = replace(options, activation=options.activation or "relu", squash=options.squash or "tanh")
    stacked = {key for key in arrays if key.endswith((".weight", ".bias")) and arrays[key].ndim > 1 + (key[-1] == "t")}
    if not stacked:
        return from_weights(path, arrays, options)
    counts = {len(arrays[key]) for key in stacked}
    if len(counts) > 1 or stacked != {key for key in arrays if key.endswith((".weight", ".bias"))}:
        shapes = ", ".join(f"{key} {arrays[key].shape}" for key in sorted(arrays) if key.endswith((".weight", ".bias")))
        raise ValueError(f"its arrays are not layers of one number of stacked policies: {shapes}")
    return [
        actor
        for i in range(counts.pop())
        for actor in from_weights(
            path,
            {key: value[i] if key in stacked else value for key, value in arrays.items()},
            replace(options, name=f"{options.name}-{i:03d}"),
        )
    ]


def _array(content: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
