"""d3rlpy's `.d3` files, and its `.pt` checkpoints next to `params.json`: weights and settings of vector policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ....runtime.pickles import RefusedError, read_pickle, read_weights
from ..actor import ACTIVATIONS, Actor, Standardisation
from ..called import D3rlpyModel
from ..needs import SEQUENCE
from ..output import Bounds
from ..policy import Policy
from .layers import layer, perceptron
from .networks import find_network, flatten
from .options import Options, library, parse_settings

_SQUASHED_NORMAL = ("sac", "cql", "cal_ql")
_TANH = (*_SQUASHED_NORMAL, "ddpg", "td3", "td3_plus_bc", "iql", "awac", "rebrac", "prdc")
_VALUES = ("dqn", "double_dqn", "discrete_cql", "nfq")
_SEQUENCES = ("decision_transformer", "discrete_decision_transformer", "tacr")
_ACTIVATIONS = {"swish": "silu", "none": "identity"}


def read(path: Path, options: Options) -> Sequence[Policy]:
    """Read the policy in a `.d3` file."""
    try:
        saved = read_pickle(path)
        config, weights = parse_settings(saved["config"]), read_weights(saved["torch"])
    except (KeyError, TypeError) as error:
        raise ValueError("damaged, or not a policy of d3rlpy: expected a dict of config and torch") from error
    try:
        return [_actor(config, weights, options)]
    except RefusedError as error:
        if not options.trust:
            raise RefusedError(f"{error}; trust=True (--trust) lets d3rlpy open it, code included") from error
    return [D3rlpyModel(options.name, library("d3rlpy", "d3rlpy").load_learnable(str(path)), options.action_count)]


def is_checkpoint(weights: Any) -> bool:
    """Return whether these are state dicts of d3rlpy's modules by name, as `save_model` writes."""
    return any("._encoder._layers." in key for key in flatten(weights))


def from_checkpoint(path: Path, weights: dict[str, Any], options: Options) -> list[Actor]:
    """Return the policy in a checkpoint, whose settings are in `params.json` next to it."""
    params = path.with_name("params.json")
    if not params.is_file():
        raise ValueError(
            "a checkpoint of d3rlpy, whose settings are missing: copy params.json of its run next to it, or save a .d3"
        )
    try:
        config = parse_settings(params.read_bytes())
    except ValueError as error:
        raise ValueError(f"params.json next to it is damaged: {error}") from error
    return [_actor(config, weights, options)]


def _actor(config: dict[str, Any], weights: dict[str, Any], options: Options) -> Actor:
    try:
        kind, params = config["config"]["type"], config["config"]["params"]
    except (KeyError, TypeError) as error:
        raise ValueError("no algorithm in its settings") from error
    if len(shape := config.get("observation_shape") or [0]) != 1:
        raise ValueError(f"it reads observations of shape {tuple(shape)}: pass a callable of states that reshapes them")
    module, head = _parts(kind)
    if kind in _VALUES and (params.get("n_critics") != 1 or _typed(params, "q_func_factory")[0] != "mean"):
        raise RefusedError(f"{kind} with several or distributional critics")
    try:
        arrays = flatten(weights[module])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no module {module!r} in its weights") from error
    activation, standardisation = _activation(params), _standardisation(params)
    network = find_network(arrays)
    layers = perceptron(arrays, network.layers)
    if head != "action":
        return Actor(
            options.name, layers, squash=False, head=head, activation=activation, standardisation=standardisation
        )
    normal = kind in _SQUASHED_NORMAL and options.stochastic
    return Actor(
        options.name,
        layers,
        activation=activation,
        standardisation=standardisation,
        scale=_scale(params),
        log_std=layer(arrays, network.log_std) if normal and network.log_std else None,
        stochastic=options.stochastic,
    )


def _parts(kind: str) -> tuple[str, str]:
    """Return the module that acts, and the head of the actor."""
    if kind in _TANH:
        return "policy", "action"
    if kind == "bc":
        return "imitator", "action"
    if kind in ("discrete_sac", "discrete_bc"):
        return ("policy" if kind == "discrete_sac" else "imitator"), "logits"
    if kind in _VALUES:
        return "q_funcs", "values"
    if kind in _SEQUENCES:
        raise ValueError(SEQUENCE)
    raise RefusedError(f"predict of {kind} uses more than one network (it samples and selects by a critic, or decodes)")


def _typed(params: dict[str, Any], key: str) -> tuple[str, dict[str, Any]]:
    value = params.get(key) or {}
    return value.get("type", "none"), value.get("params") or {}


def _activation(params: dict[str, Any]) -> str:
    key = "actor_encoder_factory" if "actor_encoder_factory" in params else "encoder_factory"
    kind, encoder = _typed(params, key)
    extra = [
        k for k in ("use_batch_norm", "use_layer_norm", "exclude_last_activation", "last_activation") if encoder.get(k)
    ]
    if kind not in ("default", "vector") or extra:
        raise RefusedError(f"its encoder is {kind} with {', '.join(extra) or 'layers that this package does not read'}")
    name = encoder.get("activation", "relu")
    name = _ACTIVATIONS.get(name, name)
    if name not in ACTIVATIONS:
        raise RefusedError(f"its activation is {name}")
    return name


def _standardisation(params: dict[str, Any]) -> Standardisation | None:
    kind, values = _typed(params, "observation_scaler")
    if kind == "none":
        return None
    if kind == "standard":
        return Standardisation(_vector(values, "mean"), _vector(values, "std") + values.get("eps", 1e-3))
    if kind == "min_max":
        low, high = _vector(values, "minimum"), _vector(values, "maximum")
        return Standardisation((low + high) / 2, (high - low) / 2)
    raise RefusedError(f"its observation scaler is {kind}")


def _scale(params: dict[str, Any]) -> Bounds | None:
    kind, values = _typed(params, "action_scaler")
    if kind == "none":
        return None
    if kind == "min_max":
        return Bounds(_vector(values, "minimum").float(), _vector(values, "maximum").float())
    raise RefusedError(f"its action scaler is {kind}")


def _vector(values: dict[str, Any], key: str) -> torch.Tensor:
    try:
        return torch.tensor(values[key], dtype=torch.float64, device="cpu")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"a scaler has no {key}: the policy was saved before it was fitted") from error
