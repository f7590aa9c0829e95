"""Checkpoints of rsl_rl (`model_*.pt`), which Isaac Lab and legged_gym write: the actor of PPO."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from ..actor import Actor, Standardisation
from .layers import floats, numbered, perceptron
from .options import Options
from .run_settings import activation_of

_EPSILON = 1e-2  # of EmpiricalNormalization, which does not save it
_ACTOR = re.compile(
    r"(actor|mlp)\.\d+\.(weight|bias)|(distribution\.)?(log_)?std(_param)?|(actor_)?obs_normalizer\.(_mean|_var|_std|count)"
)
_CRITIC = ("critic.", "critic_obs_normalizer.")


def is_weights(path: Path, weights: Any) -> bool:
    """Return whether this is what rsl_rl's runners save: of version 4 or later, or before."""
    if not isinstance(weights, dict) or "iter" not in weights:
        return False
    model = weights.get("model_state_dict")
    return isinstance(weights.get("actor_state_dict"), dict) or (isinstance(model, dict) and "actor.0.weight" in model)


def from_weights(path: Path, weights: dict[str, Any], options: Options) -> list[Actor]:
    """Return the actor in a checkpoint, which standardises observations where the run did.

    The activation is that of `params/agent.yaml` in the run's folder, else that of the options.

    Raises:
        ValueError: The actor is not a plain perceptron (recurrent, convolutional, or a deviation that depends on the
            state), or its activation is not known.
    """
    is_old = "model_state_dict" in weights
    arrays = weights["model_state_dict" if is_old else "actor_state_dict"]
    arrays = {str(key): value for key, value in arrays.items() if not str(key).startswith(_CRITIC)}
    if others := [key for key in arrays if not _ACTOR.fullmatch(key)]:
        raise ValueError(f"rsl_rl's actor is not a plain perceptron: it also has {', '.join(others[:6])}; export it")
    spreads = [key for key in arrays if "std" in key and "normalizer" not in key]
    if len(spreads) != 1:
        raise ValueError("rsl_rl's actor has no standard deviation of its own; export it to ONNX instead")
    spread = floats(arrays, spreads[0])
    log_std = spread if "log" in spreads[0] else spread.clamp_min(1e-6).log()
    return [
        Actor(
            options.name,
            perceptron(arrays, numbered(arrays, "actor." if is_old else "mlp.")),
            activation=activation_of(path, options, "a checkpoint of rsl_rl"),
            squash=False,
            log_std=log_std.reshape(-1),
            log_std_bounds=(-math.inf, math.inf),
            stochastic=options.stochastic,
            standardisation=_standardisation(weights, arrays),
        )
    ]


def _standardisation(weights: dict[str, Any], arrays: dict[str, Any]) -> Standardisation | None:
    statistics = weights.get("obs_norm_state_dict")  # version 2
    prefix = next((key[: -len("_mean")] for key in arrays if key.endswith("obs_normalizer._mean")), None)
    if prefix is not None:
        statistics = {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}
    if statistics is None:
        return None
    mean, std = (floats(statistics, key).double().reshape(-1) for key in ("_mean", "_std"))
    return Standardisation(mean, std + _EPSILON)
