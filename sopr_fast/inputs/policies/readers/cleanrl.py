"""CleanRL's `.cleanrl_model` files: weights of the agents that its single-file scripts define."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....runtime.text import printable
from ....runtime.warn import warn
from ..actor import Actor, Bounds
from .layers import floats, layer, numbered, perceptron
from .options import Options

SUFFIX = ".cleanrl_model"
_SAC_LOG_STD = (-5.0, 2.0)


def is_weights(path: Path, weights: Any) -> bool:
    """Return whether these are weights that a script of CleanRL saved: by suffix, else by names that only it uses."""
    arrays = _actor_of(weights)
    return isinstance(arrays, dict) and (
        path.suffix.lower() == SUFFIX
        or {"fc1.weight", "action_scale", "action_bias"} <= arrays.keys()
        or {"actor_mean.0.weight", "actor_logstd"} <= arrays.keys()
        or {"network.0.weight", "atoms"} <= arrays.keys()
    )


def from_weights(path: Path, weights: Any, options: Options) -> list[Actor]:
    """Return the actor of PPO, RPO, SAC, TD3, DDPG, DQN or C51.

    Activations and squashing are those of the scripts, which have no options for them.

    Args:
        path: The file.
        weights: Its content: a state dict, the actor's and the critics' in a tuple, or C51's under `model_weights`.
        options: Options of the reader.

    Raises:
        ValueError: The agent is of another script, or was changed.

    Warns:
        UserWarning: A PPO agent for continuous actions, whose statistics of observations CleanRL does not save.
    """
    arrays = _actor_of(weights)
    if "actor_mean.0.weight" in arrays:
        _check_names(arrays, ("actor_mean.", "actor_logstd", "critic."))
        warn(
            f"{printable(path)}: CleanRL's scripts for continuous actions standardise observations by statistics that "
            "they do not save: rank with states standardised in the same way"
        )
        return [
            Actor(
                options.name,
                perceptron(arrays, numbered(arrays, "actor_mean.")),
                activation="tanh",
                squash=False,
                log_std=floats(arrays, "actor_logstd").reshape(-1),
                log_std_bounds=(-math.inf, math.inf),
                stochastic=options.stochastic,
            )
        ]
    if "fc1.weight" in arrays:  # SAC, TD3, DDPG
        last = "fc_mean" if "fc_mean.weight" in arrays else "fc_mu"
        names = [f"fc{i}" for i in range(1, len(arrays)) if f"fc{i}.weight" in arrays]
        _check_names(arrays, (*(f"{name}." for name in names), f"{last}.", "fc_logstd.", "action_scale", "action_bias"))
        return [
            Actor(
                options.name,
                perceptron(arrays, [*names, last]),
                activation="relu",
                scale=_bounds(arrays),
                log_std=layer(arrays, "fc_logstd") if "fc_logstd.weight" in arrays else None,
                log_std_bounds=_SAC_LOG_STD,
                log_std_tanh=True,
                stochastic=options.stochastic,
            )
        ]
    if "actor.0.weight" in arrays:  # PPO of discrete actions
        _check_names(arrays, ("actor.", "critic."))
        layers = perceptron(arrays, numbered(arrays, "actor."))
        return [Actor(options.name, layers, activation="tanh", squash=False, head="logits")]
    if "network.0.weight" in arrays:  # DQN, C51
        _check_names(arrays, ("network.", "atoms"))
        atoms = floats(arrays, "atoms") if "atoms" in arrays else None
        layers = perceptron(arrays, numbered(arrays, "network."))
        return [Actor(options.name, layers, activation="relu", squash=False, head="values", atoms=atoms)]
    raise ValueError(
        f"not an agent of CleanRL's PPO, RPO, SAC, TD3, DDPG, DQN or C51 scripts: it has {', '.join(list(arrays)[:6])}"
    )


def _actor_of(weights: Any) -> Any:
    if isinstance(weights, tuple | list) and weights:
        return weights[0]
    if isinstance(weights, dict) and isinstance(weights.get("model_weights"), dict):
        return weights["model_weights"]
    return weights


def _check_names(arrays: dict[str, Any], expected: tuple[str, ...]) -> None:
    if others := [str(key) for key in arrays if not str(key).startswith(expected)]:
        raise ValueError(f"not the agent of a script of CleanRL, which has no {', '.join(others[:6])}")


def _bounds(arrays: dict[str, Tensor]) -> Bounds:
    half, middle = (floats(arrays, name).reshape(-1) for name in ("action_scale", "action_bias"))
    if half.shape != middle.shape or not torch.isfinite(half + middle).all():
        raise ValueError("action_scale and action_bias differ in width")
    return Bounds(middle - half, middle + half)
