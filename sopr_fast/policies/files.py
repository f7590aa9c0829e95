"""Policies from files; nothing in a file is executed."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from .actor import Actor, Layer
from .arrays import ArrayPolicy
from .policy import Policy


def load(
    path: str | PathLike,
    *,
    stochastic: bool = False,
    states_count: int | None = None,
    action_count: int | None = None,
) -> list[Policy]:
    """The policies in a file, or in all `.npz` and `.npy` files of a folder in the order of their names.

    An `.npz` file holds the layers of an actor, `hidden_0`, `hidden_1`, … and `mean`, each as `.weight` (out,
    in) and `.bias` (out,), any float type; with another dimension in front, a stack of actors. Optional are
    `log_std` (as `mean`; used if `stochastic`) and the strings `activation` ("relu", or "tanh") and `squash`
    ("tanh", or "none"), see `Actor`. An `.npy` file holds actions for every state of the data and is
    memory-mapped. Policies are named after the file, those of a stack with "-000", "-001", … behind.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file that is damaged, of another kind, pickled, or whose layers do not fit each other.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in (".npz", ".npy"))
        if not files:
            raise ValueError(f"{path}: no .npz or .npy files in this folder")
        options = {"stochastic": stochastic, "states_count": states_count, "action_count": action_count}
        return [policy for file in files for policy in load(file, **options)]
    if path.suffix not in (".npz", ".npy"):
        raise ValueError(f"{path}: expected an .npz file of layers or an .npy file of actions")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        if path.suffix == ".npy":
            actions = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path}: damaged, or not an {path.suffix} file of plain arrays") from error
    if path.suffix == ".npy":
        return [ArrayPolicy(path.stem, actions, states_count=states_count, action_count=action_count)]
    return _actors(path, arrays, stochastic)


def _actors(path: Path, arrays: dict[str, np.ndarray], stochastic: bool) -> list[Policy]:
    hidden = [f"hidden_{i}" for i in range(sum(f"hidden_{j}.weight" in arrays for j in range(len(arrays))))]
    names = [*hidden, "mean"] + ["log_std"] * stochastic
    missing = [key for name in names for key in (f"{name}.weight", f"{name}.bias") if key not in arrays]
    if missing:
        raise ValueError(f"{path}: no array {missing[0]!r}, found {sorted(arrays)}")
    stacked = arrays["mean.weight"].ndim == 3
    count = len(arrays["mean.weight"]) if stacked else 1
    layers = {name: _layer(path, arrays, name, count, stacked) for name in names}
    width = layers[names[0]][0].shape[2]
    for name in [*hidden, "mean"]:
        weight = layers[name][0]
        if weight.shape[2] != width:
            raise ValueError(f"{path}: {name}.weight reads {weight.shape[2]} columns, the layer before has {width}")
        width = weight.shape[1]
    if stochastic and layers["log_std"][0].shape != layers["mean"][0].shape:
        raise ValueError(f"{path}: log_std.weight must have the shape of mean.weight")
    activation, squash = (str(arrays.get(k, v)) for k, v in (("activation", "relu"), ("squash", "tanh")))
    if activation not in ("relu", "tanh") or squash not in ("tanh", "none"):
        raise ValueError(f"{path}: activation {activation!r}, squash {squash!r}; known are relu, tanh; tanh, none")

    def layer(name: str, i: int) -> Layer:
        weight, bias = layers[name]
        return weight[i], bias[i]

    return [
        Actor(
            f"{path.stem}-{i:03d}" if stacked else path.stem,
            [layer(name, i) for name in [*hidden, "mean"]],
            activation=activation,
            squash=squash == "tanh",
            log_std=layer("log_std", i) if stochastic else None,
            stochastic=stochastic,
        )
        for i in range(count)
    ]


def _layer(path: Path, arrays: dict[str, np.ndarray], name: str, count: int, stacked: bool) -> Layer:
    """Weight (count, out, in) and bias (count, out), float32."""
    weight, bias = arrays[f"{name}.weight"], arrays[f"{name}.bias"]
    if not stacked:
        weight, bias = weight[None], bias[None]
    if weight.ndim != 3 or bias.shape != weight.shape[:2] or len(weight) != count:
        raise ValueError(
            f"{path}: {name}.weight {arrays[f'{name}.weight'].shape} and {name}.bias "
            f"{arrays[f'{name}.bias'].shape} are no layer, expected (out, in) and (out,), in a stack with "
            "the number of policies in front"
        )
    for part, values in (("weight", weight), ("bias", bias)):
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise ValueError(f"{path}: {name}.{part} must be finite floats, got dtype {values.dtype}")
    return tuple(torch.from_numpy(np.ascontiguousarray(part, dtype=np.float32)) for part in (weight, bias))
