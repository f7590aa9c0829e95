"""State dicts of an `nn.Sequential` of linear layers and activations, from torch's files or safetensors."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from ....runtime.files import is_own
from ..actor import Actor
from .layers import numbered, perceptron, unwrap, warn_of_scaling
from .options import Options


def read_safetensors(path: Path, options: Options) -> list[Actor]:
    """Read the actor in a safetensors file. The file is not mapped, since overwriting it would end the process.

    Raises:
        ValueError: It is damaged, what this package wrote, or no state dict of an `nn.Sequential`.
    """
    try:
        data = path.read_bytes()
        if is_own(data):
            raise ValueError(
                "a model, subsets or a checkpoint of sopr_fast, not a policy: move it out of the folder of policies, "
                "or name the files"
            )
        arrays = load(data)
    except SafetensorError as error:
        raise ValueError(f"damaged, or not a safetensors file ({error})") from error
    return from_state_dict(arrays, options)


def from_state_dict(weights: Any, options: Options) -> list[Actor]:
    """Return the actor in a state dict, whose activation and squashing the options state.

    Raises:
        ValueError: It is not a plain `nn.Sequential`, or the options do not say what it does not.

    Warns:
        UserWarning: The checkpoint around the state dict seems to hold a scaling of states or actions.
    """
    arrays = unwrap(weights)
    if not isinstance(arrays, dict) or not all(isinstance(key, str) for key in arrays):
        raise ValueError(f"expected a state dict, found {type(arrays).__name__}")
    prefixes = {m[1] for key in arrays if (m := re.fullmatch(r"(|.*\.)\d+\.weight", key))}
    if len(prefixes) != 1:
        content = f"several: {', '.join(sorted(prefixes))}" if prefixes else f"only {', '.join(sorted(arrays)[:12])}"
        raise ValueError(
            f"expected the layers '0.weight', '0.bias', '2.weight', … of one nn.Sequential, found {content}"
        )
    prefix = prefixes.pop()
    if others := [key for key in arrays if not re.fullmatch(re.escape(prefix) + r"\d+\.\w+", key)]:
        raise ValueError(f"not a plain nn.Sequential: it also has {', '.join(others[:6])}")
    names = numbered(arrays, prefix)
    layers = perceptron(arrays, names, bias=False)
    missing = [key for key in ("activation", "squash") if getattr(options, key) is None]
    if len(layers) == 1 and "activation" in missing:
        missing.remove("activation")
    if missing:
        flags = " and ".join(f"{key}=… (--{key} …)" for key in missing)
        raise ValueError(f"a state dict does not say its {' and '.join(missing)}: give policies.load {flags}")
    activation = options.activation or "identity"
    if arrays is not weights:
        warn_of_scaling(options.name, weights)
    _check_positions([int(name[len(prefix) :]) for name in names], activation)
    return [Actor(options.name, layers, activation=activation, squash=options.squash == "tanh")]


def _check_positions(positions: list[int], activation: str) -> None:
    """Check that the layers' positions in the `nn.Sequential` leave one between each two, for the activation."""
    if positions[0] > 0:
        raise ValueError(f"its first layer is {positions[0]}, and a state dict does not say what is before it")
    for before, after in pairwise(positions):
        between = after - before - 1
        if between > 1 or (between == 0 and activation != "identity"):
            raise ValueError(
                f"layers {before} and {after} have {between} modules between them, expected one: {activation}; "
                "save the module as TorchScript or ONNX instead"
            )
