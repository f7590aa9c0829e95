"""`.npz` files of layers: one actor, or a stack of them."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from ....runtime.archives import open_archive, read_members
from ...logs.keys import check_is_policy
from ..actor import ACTIVATIONS, Actor
from .layers import layer, perceptron, warn_of_scaling
from .options import Options

_WANTED = re.compile(r"(hidden_\d+|mean|log_std)\.(weight|bias)|activation|squash")


def read(path: Path, options: Options) -> list[Actor]:
    """Read the actors; arrays of other names are not inflated.

    Raises:
        ValueError: The file is damaged, or its arrays are not the layers of an actor.

    Warns:
        UserWarning: Other arrays seem to scale states or actions.
    """
    arrays, keys = _arrays(path)
    if other := [key for key in keys if key.endswith((".weight", ".bias")) and not _WANTED.fullmatch(key)]:
        raise ValueError(f"array {other[0]!r} is no layer hidden_0, hidden_1, …, mean or log_std; found {sorted(keys)}")
    hidden = [f"hidden_{i}" for i in range(sum(f"hidden_{j}.weight" in arrays for j in range(len(arrays))))]
    names = [*hidden, "mean"] + ["log_std"] * options.stochastic
    wanted = [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    if missing := [key for key in wanted if key not in arrays]:
        check_is_policy(keys)
        raise ValueError(f"no array {missing[0]!r}, found {sorted(keys)}")
    warn_of_scaling(options.name, dict.fromkeys(keys, ()))
    activation, squash = (_stated(arrays, options, k, v) for k, v in (("activation", "relu"), ("squash", "tanh")))
    if activation not in ACTIVATIONS or squash not in ("tanh", "none"):
        raise ValueError(
            f"activation {activation!r}, squash {squash!r}; expected one of {', '.join(ACTIVATIONS)}, and tanh or none"
        )
    shared = {"activation": activation, "squash": squash == "tanh", "stochastic": options.stochastic}
    if arrays["mean.weight"].ndim != 3:
        return [_actor(options.name, arrays, hidden, shared)]
    count = len(arrays["mean.weight"])
    for name in names:
        weight, bias = (arrays[f"{name}.{part}"].shape for part in ("weight", "bias"))
        if weight[:1] != (count,) or bias[:1] != (count,):
            raise ValueError(
                f"{name}.weight {weight} and {name}.bias {bias} are not a layer of {count} stacked policies"
            )
    stack = [{key: arrays[key][i] for key in wanted} for i in range(count)]
    return [_actor(f"{options.name}-{i:03d}", one, hidden, shared) for i, one in enumerate(stack)]


def _arrays(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the arrays by name, and the names of all arrays in the file."""
    try:
        with open_archive(path) as archive:
            keys = [name.removesuffix(".npy") for name in archive.namelist()]
            members = [f"{key}.npy" for key in keys if _WANTED.fullmatch(key)]
            contents = read_members(archive, members)
        return {name.removesuffix(".npy"): _array(content) for name, content in contents.items()}, keys
    except (ValueError, KeyError, EOFError) as error:
        raise ValueError(f"damaged, or not an .npz file of plain arrays ({error})") from error


def _array(content: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def _stated(arrays: dict[str, np.ndarray], options: Options, key: str, default: str) -> str:
    """Return what the file states, else the option, which may be meant for other files of a folder, else `default`."""
    return str(arrays.get(key, getattr(options, key) or default))


def _actor(name: str, arrays: dict[str, np.ndarray], hidden: list[str], shared: dict[str, Any]) -> Actor:
    layers = perceptron(arrays, [*hidden, "mean"])
    log_std = layer(arrays, "log_std") if shared["stochastic"] else None
    if log_std is not None and log_std[0].shape != layers[-1][0].shape:
        raise ValueError("log_std.weight must have the shape of mean.weight")
    return Actor(name, layers, log_std=log_std, **shared)
