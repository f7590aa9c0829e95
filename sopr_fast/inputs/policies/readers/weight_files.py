"""Files of weights: `torch.save`, safetensors, NumPy's archives, pickles of arrays; code in them only if trusted."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

from ....runtime.archives import open_archive, read_members
from ....runtime.files import read_regular
from ....runtime.pickles import RefusedError, read_pickle, read_weights
from ....runtime.tensor_files import is_own
from ...logs.keys import KEYS, check_is_policy
from ..callables import acts
from ..options import Options
from ..policy import Policy
from .names import is_read
from .programs import with_head
from .state_dicts import from_weights


def read_torch(path: Path, options: Options) -> Sequence[Policy]:
    """Read the policy in a state dict, a checkpoint, or, with trust, a pickled module."""
    try:
        weights = read_weights(path)
    except RefusedError as error:
        if re.search(r"names (gym|gymnasium)\.spaces", str(error)):
            raise ValueError(
                "what policy.save of Stable-Baselines3 wrote, without the policy's class: save the model by model.save"
            ) from error
        if not options.trust:
            raise RefusedError(f"{error}; trust=True (--trust) opens it as code, if you trust its maker") from error
        weights = torch.load(path, map_location="cpu", weights_only=False)
        if acts(weights):
            return [with_head(weights, options, is_program=False)]
    return from_weights(path, weights, options)


def read_safetensors(path: Path, options: Options) -> Sequence[Policy]:
    """Read the actor in a safetensors file. The file is not mapped, since overwriting it would end the process."""
    data = read_regular(path)
    if is_own(data):
        raise ValueError(
            "a model, subsets or a checkpoint of sopr_fast, not a policy: move it out of the folder of policies, "
            "or name the files"
        )
    return from_weights(path, load(data), options, is_ordered=False)


def read_pickled(path: Path, options: Options) -> Sequence[Policy]:
    """Read the actor in a pickle of arrays, such as those of D4RL."""
    try:
        return from_weights(path, read_pickle(path), options)
    except RefusedError as error:
        raise RefusedError(f"{error}; open it in Python and pass what acts") from error


def read_npz(path: Path, options: Options) -> Sequence[Policy]:
    """Read an actor, or a stack of them; by default, layers act by ReLU and the action goes through tanh."""
    with open_archive(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if not any(name.endswith(".weight") for name in names):
            check_is_policy(set(names) - {*KEYS["actions"]})
        members = read_members(archive, [f"{name}.npy" for name in names if is_read(name)])
    arrays: dict[str, Any] = dict.fromkeys(names)
    for name, content in members.items():
        arrays[name.removesuffix(".npy")] = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    options = replace(options, activation=options.activation or "relu", squash=options.squash or "tanh")
    layers = {key: value for key, value in arrays.items() if key.endswith((".weight", ".bias"))}
    stacked = [key for key, value in layers.items() if value.ndim > 1 + key.endswith(".weight")]
    if not stacked:
        return from_weights(path, arrays, options)
    counts = {len(value) for value in layers.values()}
    if len(counts) > 1 or len(stacked) < len(layers):
        shapes = ", ".join(f"{key} {value.shape}" for key, value in sorted(layers.items()))
        raise ValueError(f"its arrays are not layers of one number of stacked policies: {shapes}")
    actors: list[Policy] = []
    for i in range(counts.pop()):
        own = arrays | {key: value[i] for key, value in layers.items()}
        actors += from_weights(path, own, replace(options, name=f"{options.name}-{i:03d}"))
    return actors
