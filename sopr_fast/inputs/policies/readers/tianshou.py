"""State dicts of Tianshou's policies and algorithms: `Net` with the actors of its `utils.net`, and DQN."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..actor import Actor, Standardisation
from .layers import Arrays, floats, layer, numbered, perceptron, unwrap
from .options import Options, stated

_WHAT = "a state dict of Tianshou"
_BODY = re.compile(r"((?:policy\.)?(?:actor\.)?preprocess\.)model\.model\.0\.weight")
_VALUES = re.compile(r"((?:policy\.)?model\.model\.)model\.0\.weight")  # DQN's Net
_BOUNDS = (-20.0, 2.0)


def is_weights(path: Path, weights: Any) -> bool:
    """Return whether this is the state dict of a policy, or it and `obs_rms` as in Tianshou's examples."""
    arrays = unwrap(weights)
    return isinstance(arrays, dict) and any(_BODY.fullmatch(str(key)) or _VALUES.fullmatch(str(key)) for key in arrays)


def from_weights(path: Path, weights: Any, options: Options) -> list[Actor]:
    """Return the actor: its action in [-1, 1], before the policy maps it to the bounds of the action space.

    Activation and squashing are those of the options: tanh for SAC, TD3 and DDPG, none for PPO with `unbounded=True`.
    A deterministic head counts as one of discrete actions if `action_count` is the number of its outputs. Where the
    file also has `obs_rms`, as Tianshou's MuJoCo examples save it, observations are standardised by it.

    Raises:
        ValueError: The network is not a plain perceptron, or the options do not say what the file does not.
    """
    arrays = {str(key): value for key, value in unwrap(weights).items()}
    shared: dict[str, Any] = {
        "activation": stated(options, "activation", _WHAT),
        "standardisation": _standardisation(weights),
    }
    body = next((match[1] for key in arrays if (match := _BODY.fullmatch(key))), None)
    if body is None:
        prefix = next(match[1] for key in arrays if (match := _VALUES.fullmatch(key)))
        if any(key.startswith((f"{prefix}Q.", f"{prefix}V.")) or "Q.model" in key for key in arrays):
            raise ValueError("a duelling network, which this package does not read; export it to ONNX")
        layers = perceptron(arrays, numbered(arrays, f"{prefix}model."))
        return [Actor(options.name, layers, squash=False, head="values", **shared)]
    actor = body.removesuffix("preprocess.")
    names = numbered(arrays, f"{body}model.model.")
    head = next((name for name in ("mu", "last") if f"{actor}{name}.model.0.weight" in arrays), None)
    if head is None:
        raise ValueError(f"no actor of Tianshou that this package reads among {', '.join(list(arrays)[:6])}")
    layers = perceptron(arrays, [*names, *numbered(arrays, f"{actor}{head}.model.")])
    if head == "last" and options.action_count == len(layers[-1][0]):
        return [Actor(options.name, layers, squash=False, head="logits", **shared)]
    return [
        Actor(
            options.name,
            layers,
            squash=stated(options, "squash", _WHAT) == "tanh",
            log_std=_log_std(arrays, actor) if options.stochastic else None,
            log_std_bounds=_BOUNDS if f"{actor}sigma.model.0.weight" in arrays else (-math.inf, math.inf),
            stochastic=options.stochastic,
            **shared,
        )
    ]


def _log_std(arrays: Arrays, actor: str) -> Any:
    if f"{actor}sigma_param" in arrays:
        return floats(arrays, f"{actor}sigma_param").reshape(-1)
    names = numbered(arrays, f"{actor}sigma.model.")
    if len(names) == 1 and len(numbered(arrays, f"{actor}mu.model.")) == 1:
        return layer(arrays, names[0])
    raise ValueError("its deviations are not one layer: load it without stochastic")


def _standardisation(weights: Any) -> Standardisation | None:
    """Return the standardisation of `VectorEnvNormObs`, whose statistics are a record beside the weights."""
    statistics = weights.get("obs_rms")
    if statistics is None:
        return None
    try:
        mean, variance = (torch.from_numpy(np.array(getattr(statistics, key), np.float64)) for key in ("mean", "var"))
        eps, clip = float(statistics.eps), float(statistics.clip_max or math.inf)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError("its obs_rms are not the statistics of Tianshou's VectorEnvNormObs") from error
    if not (mean.isfinite().all() and variance.isfinite().all()):
        raise ValueError("its obs_rms hold a mean or variance that is not finite")
    return Standardisation(mean.reshape(-1), (variance + eps).sqrt().reshape(-1), clip)
