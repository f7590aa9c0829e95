"""Policies of D4RL and the DOPE benchmark: a pickled dict of arrays `fc0/weight`, `fc0/bias`, …, `last_fc/weight`, …

`nonlinearity` ("tanh" or "relu") is the activation between layers. The action follows a normal distribution of
mean `last_fc` and log standard deviation `last_fc_log_std`, through tanh if `output_distribution` is "tanh_gaussian".
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ....runtime.files import open_regular
from ....runtime.pickles import read_pickle
from ..actor import Actor
from .layers import layer, perceptron
from .options import Options


def read(path: Path, options: Options) -> list[Actor]:
    """Read the actor."""
    with open_regular(path) as file:
        weights = read_pickle(file)
    if not isinstance(weights, dict) or "last_fc/weight" not in weights:
        content = sorted(map(str, weights))[:8] if isinstance(weights, dict) else type(weights).__name__
        raise ValueError(f"not a D4RL policy: expected a dict with 'last_fc/weight', found {content}")
    hidden = [f"fc{i}" for i in range(sum(f"fc{i}/weight" in weights for i in range(len(weights))))]
    activation = _text(weights, "nonlinearity")
    if activation not in ("tanh", "relu"):
        raise ValueError(f"'nonlinearity' is {activation!r}, expected tanh or relu")
    return [
        Actor(
            options.name,
            perceptron(weights, [*hidden, "last_fc"], separator="/"),
            activation=activation,
            squash=_text(weights, "output_distribution") == "tanh_gaussian",
            log_std=layer(weights, "last_fc_log_std", separator="/") if options.stochastic else None,
            log_std_bounds=(-math.inf, math.inf),
            stochastic=options.stochastic,
        )
    ]


def _text(weights: dict[str, Any], key: str) -> str:
    value = weights.get(key)
    value = value.decode("latin1") if isinstance(value, bytes) else value
    if not isinstance(value, str):
        raise ValueError(f"no text {key!r}, found {sorted(map(str, weights))}")
    return str(value)
