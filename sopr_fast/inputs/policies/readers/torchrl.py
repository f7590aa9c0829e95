"""State dicts of TorchRL's actors: perceptrons inside of `TensorDictModule`s."""

from __future__ import annotations

import logging
import math
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from ....runtime.text import printable
from ..actor import Actor, Bounds
from .layers import floats, numbered, perceptron, unwrap, warn_of_scaling
from .options import Options, stated

_log = logging.getLogger("sopr_fast")
_LAYER = re.compile(r"((?:module\.\d+\.)+(?:module\.)?(?:\d+\.)?)\d+\.(?:weight|bias)")
_SCALE = re.compile(r"module\.0\.module\.\d+\.state_independent_scale")
_BOUND = re.compile(r"module\.\d+\.\w+_(low|high)")


def is_weights(path: Path, weights: Any) -> bool:
    """Return whether this is the state dict of an actor of TorchRL with its modules in a sequence."""
    arrays = unwrap(weights)
    return (
        isinstance(arrays, dict)
        and any(str(key).startswith("module.0.module.") for key in arrays)
        and all(_kind(str(key)) for key in arrays)
    )


def from_weights(path: Path, weights: Any, options: Options) -> list[Actor]:
    """Return the actor; activation and squashing are those of the options.

    A state dict does not hold modules without weights. What it can be is read as follows:

    - With `TanhModule`, its bounds are in the file: actions are squashed to them.
    - With `AddStateIndependentNormalScale`, deviations are the exponential of its parameter.
    - Else, a perceptron inside of another sequence is followed by `NormalParamExtractor`: means are the first half of
      its outputs. Deviations are not read, since their mapping is not in the file.
    - A perceptron that is not: discrete actions if `action_count` is the number of outputs; else the action.

    Raises:
        ValueError: There are several perceptrons, or the options do not say what the file does not.
    """
    if (content := unwrap(weights)) is not weights:
        warn_of_scaling(options.name, weights)
    arrays = {str(key): value for key, value in content.items()}
    prefixes = sorted({match[1] for key in arrays if (match := _LAYER.fullmatch(key))})
    if len(prefixes) != 1:
        raise ValueError(f"expected one perceptron of a TorchRL actor, found {', '.join(prefixes) or 'none'}")
    layers = perceptron(arrays, numbered(arrays, prefixes[0]), bias=False)
    activation = stated(options, "activation", "a state dict of TorchRL")
    if options.action_count == len(layers[-1][0]):
        return [Actor(options.name, layers, activation=activation, squash=False, head="values")]
    bounds = _bounds(arrays, len(layers[-1][0]))
    scale = next((key for key in arrays if _SCALE.fullmatch(key)), None)
    if scale is None and bounds is None and re.fullmatch(r"module\.0\.module\.\d+\.", prefixes[0]):
        weight, bias = layers[-1]
        if len(weight) % 2:
            raise ValueError(f"its last layer has {len(weight)} outputs, which are not means and deviations")
        layers[-1] = weight[: len(weight) // 2].contiguous(), bias[: len(weight) // 2].contiguous()
        _log.info(
            "%s: the first half of its outputs are taken as means, as NormalParamExtractor splits them", printable(path)
        )
    return [
        Actor(
            options.name,
            layers,
            activation=activation,
            squash=bounds is not None or stated(options, "squash", "a state dict of TorchRL") == "tanh",
            scale=bounds,
            log_std=None if scale is None else floats(arrays, scale).reshape(-1),
            log_std_bounds=(-math.inf, math.inf),
            stochastic=options.stochastic,
        )
    ]


def _kind(key: str) -> re.Match[str] | None:
    return _LAYER.fullmatch(key) or _SCALE.fullmatch(key) or _BOUND.fullmatch(key)


def _bounds(arrays: dict[str, Tensor], width: int) -> Bounds | None:
    sides = [next((floats(arrays, key) for key in arrays if key.endswith(end)), None) for end in ("_low", "_high")]
    if sides[0] is None or sides[1] is None:
        return None
    low, high = (side.reshape(-1).expand(width).contiguous() for side in sides if side is not None)
    return Bounds(low, high)
