"""Files of weights: those of `torch.save`, safetensors, and pickles of arrays; code in them only if trusted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from ....runtime.files import read_regular
from ....runtime.pickles import RefusedError, read_pickle, read_weights
from ....runtime.tensor_files import is_own
from ...logs.keys import list_names
from ..callables import acts
from ..policy import Policy
from .onnx_torchscript import with_head
from .options import Options
from .weights import from_weights


def read(path: Path, options: Options) -> Sequence[Policy]:
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
        return _trusted(path, options)
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


def _trusted(path: Path, options: Options) -> Sequence[Policy]:
    """Read what torch unpickles: of several modules the actor, with the statistics of states next to it."""
    item: Any = torch.load(path, map_location="cpu", weights_only=False)
    parts = item if isinstance(item, dict) else dict(enumerate(item)) if isinstance(item, list | tuple) else {}
    modules = {str(key): value for key, value in parts.items() if isinstance(value, torch.nn.Module)}
    if not modules:
        return [with_head(item, options, is_program=False)] if acts(item) else from_weights(path, item, options)
    weights: Any = {key: module.state_dict() for key, module in modules.items()}
    for value in parts.values():
        statistics = getattr(value, "__dict__", {}) if not isinstance(value, dict) else value
        if {"mean", "var"} <= statistics.keys():
            return from_weights(path, (weights if len(weights) > 1 else weights.popitem()[1], statistics), options)
    name = "actor" if len(modules) > 1 else next(iter(modules))
    if (name := options.take("actor") or name) not in modules:
        raise ValueError(f"no module {name!r} in it, pass actor=… (--actor …), one of {list_names(list(modules))}")
    return [with_head(modules[name], options, is_program=False)]
