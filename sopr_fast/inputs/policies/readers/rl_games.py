"""Checkpoints of rl_games (`.pth`), which Isaac Lab and Isaac Gym write: the actor of PPO."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from ..actor import Actor, Standardisation
from .layers import floats, layer, numbered, perceptron
from .options import Options
from .run_settings import activation_of, read_values

_NETWORK = "a2c_network."
_EPSILON, _CLIP = 1e-5, 5.0  # of RunningMeanStd
_NO_ACTOR = re.compile(r"(a2c_network\.(value|critic_mlp|critic_cnn)|value_mean_std)\..*")
_ACTOR = re.compile(r"a2c_network\.(actor_mlp\.\d+|mu|logits|sigma)(\.(weight|bias))?|running_mean_std\.\w+")


def is_weights(path: Path, weights: Any) -> bool:
    """Return whether this is what rl_games' `save_checkpoint` writes for its actor-critic agents."""
    return (
        isinstance(weights, dict)
        and isinstance(weights.get("model"), dict)
        and any(_NETWORK in str(key) for key in weights["model"])
    )


def from_weights(path: Path, weights: dict[str, Any], options: Options) -> list[Actor]:
    """Return the actor in a checkpoint: its mean action, before the player clips it to [-1, 1] and rescales it.

    The activation is that of `params/agent.yaml` (Isaac Lab) or `config.yaml` (Isaac Gym) of the run, else that of the
    options.

    Raises:
        ValueError: The actor is not a plain perceptron (recurrent, convolutional, several discrete actions), or its
            activation is not known, or how it stores deviations if `stochastic`.
    """
    model = {str(key).removeprefix("_orig_mod."): value for key, value in weights["model"].items()}
    arrays = {key: value for key, value in model.items() if not _NO_ACTOR.fullmatch(key)}
    if others := [key for key in arrays if not _ACTOR.fullmatch(key)]:
        raise ValueError(f"rl_games' actor is not a plain perceptron: it also has {', '.join(others[:6])}")
    is_discrete = f"{_NETWORK}logits.weight" in arrays
    names = [*numbered(arrays, f"{_NETWORK}actor_mlp."), _NETWORK + ("logits" if is_discrete else "mu")]
    shared: dict[str, Any] = {
        "activation": activation_of(path, options, "a checkpoint of rl_games"),
        "standardisation": _standardisation(weights, arrays),
    }
    layers = perceptron(arrays, names)
    if is_discrete:
        return [Actor(options.name, layers, squash=False, head="logits", **shared)]
    return [
        Actor(
            options.name,
            layers,
            squash=_squashes(path),
            log_std=_log_std(path, arrays) if options.stochastic else None,
            log_std_bounds=(-math.inf, math.inf),
            stochastic=options.stochastic,
            **shared,
        )
    ]


def _squashes(path: Path) -> bool:
    stated = read_values(path, "mu_activation") - {"None", "none", "null"}
    if stated - {"tanh"}:
        raise ValueError(f"its mu_activation is {', '.join(sorted(stated))}")
    return bool(stated)


def _log_std(path: Path, arrays: dict[str, Tensor]) -> Any:
    """Return the log standard deviations, which only one of rl_games' two models stores as such."""
    if "continuous_a2c_logstd" not in read_values(path, "name") or read_values(path, "sigma_activation") - {"None"}:
        raise ValueError(
            "whether its sigma is a logarithm stands in the settings of the run (name: continuous_a2c_logstd), which "
            "are not beside it as params/agent.yaml or config.yaml: load it without stochastic"
        )
    name = f"{_NETWORK}sigma"
    return floats(arrays, name) if name in arrays else layer(arrays, name)


def _standardisation(weights: dict[str, Any], arrays: dict[str, Tensor]) -> Standardisation | None:
    prefix = "running_mean_std."
    statistics = {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}
    statistics = statistics or weights.get("running_mean_std") or {}  # the latter before version 1.2
    if not statistics:
        return None
    mean, variance = (floats64(statistics, key) for key in ("running_mean", "running_var"))
    return Standardisation(mean, (variance + _EPSILON).sqrt(), _CLIP)


def floats64(arrays: dict[str, Tensor], key: str) -> Tensor:
    """Return array `key` in float64 after the checks of `floats`."""
    floats(arrays, key)
    return arrays[key].detach().double().reshape(-1)
