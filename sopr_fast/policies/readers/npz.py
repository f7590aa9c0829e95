"""`.npz` files of layers: one actor, or a stack of them."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ..actor import ACTIVATIONS, Actor
from .layers import layer, perceptron
from .options import Options


def read(path: Path, options: Options) -> list[Actor]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise ValueError("damaged, or not an .npz file of plain arrays") from error
    hidden = [f"hidden_{i}" for i in range(sum(f"hidden_{j}.weight" in arrays for j in range(len(arrays))))]
    names = [*hidden, "mean"] + ["log_std"] * options.stochastic
    keys = [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    if missing := [key for key in keys if key not in arrays]:
        raise ValueError(f"no array {missing[0]!r}, found {sorted(arrays)}")
    activation, squash = (_stated(arrays, options, k, v) for k, v in (("activation", "relu"), ("squash", "tanh")))
    if activation not in ACTIVATIONS or squash not in ("tanh", "none"):
        raise ValueError(
            f"activation {activation!r}, squash {squash!r}; known are {', '.join(ACTIVATIONS)}; tanh, none"
        )
    shared = {"activation": activation, "squash": squash == "tanh", "stochastic": options.stochastic}
    if arrays["mean.weight"].ndim != 3:
        return [_actor(options.name, arrays, hidden, shared)]
    count = len(arrays["mean.weight"])
    for name in names:
        weight, bias = (arrays[f"{name}.{part}"].shape for part in ("weight", "bias"))
        if weight[:1] != (count,) or bias[:1] != (count,):
            raise ValueError(
                f"{name}.weight {weight} and {name}.bias {bias} are no layer of a stack of {count} policies"
            )
    stack = [{key: arrays[key][i] for key in keys} for i in range(count)]
    return [_actor(f"{options.name}-{i:03d}", one, hidden, shared) for i, one in enumerate(stack)]


def _stated(arrays: dict[str, np.ndarray], options: Options, key: str, default: str) -> str:
    """What the file says of its `key`, or else the caller, who may mean others of a folder, or else `default`."""
    return str(arrays.get(key, getattr(options, key) or default))


def _actor(name: str, arrays: dict[str, np.ndarray], hidden: list[str], shared: dict) -> Actor:
    layers = perceptron(arrays, [*hidden, "mean"])
    log_std = layer(arrays, "log_std") if shared["stochastic"] else None
    if log_std is not None and log_std[0].shape != layers[-1][0].shape:
        raise ValueError("log_std.weight must have the shape of mean.weight")
    return Actor(name, layers, log_std=log_std, **shared)
