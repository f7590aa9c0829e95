"""Files that `torch.save` wrote: state dicts and libraries' checkpoints; pickled modules only if trusted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ....runtime.files import open_regular
from ....runtime.pickles import RefusedError, read_weights
from ..called import Called, acts
from ..policy import Policy
from . import cleanrl, d3rlpy, rl_games, rsl_rl, tianshou, torchrl
from .options import Options
from .sequential import from_state_dict


def read(path: Path, options: Options) -> Sequence[Policy]:
    """Read the policy in a state dict, a checkpoint, or, with trust, a pickled module."""
    try:
        with open_regular(path) as file:
            weights = read_weights(file)
    except RefusedError as error:
        if not options.trust:
            raise RefusedError(f"{error}; trust=True (--trust) opens it as code, if you trust its maker") from error
        return [_module(path, options)]
    if d3rlpy.is_checkpoint(weights):
        return d3rlpy.from_checkpoint(path, weights, options)
    for library in (cleanrl, rsl_rl, rl_games, tianshou, torchrl):
        if library.is_weights(path, weights):
            return library.from_weights(path, weights, options)
    return from_state_dict(weights, options)


def _module(path: Path, options: Options) -> Called:
    try:
        item = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # the code in the file may raise any type
        raise ValueError(f"torch cannot open it: {type(error).__name__}: {error}") from error
    if not acts(item):
        raise ValueError(f"it holds a {type(item).__name__}, which is not a policy")
    return Called(options.name, item, options.action_count)
