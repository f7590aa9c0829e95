"""d3rlpy's `.d3` files: weights and settings of vector policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..inputs.lazy_arrays import flatten
from ..inputs.policies.actor import ACTIVATIONS, Actor, Standardisation, layer_names, perceptron
from ..inputs.policies.callables import RECURRENT, adapt
from ..inputs.policies.output import Bounds
from ..inputs.policies.policy import Policy
from ..inputs.policies.policy_files import ReadingOptions, own_or_opened
from ..runtime.containers import read_json
from ..runtime.extras import library
from ..runtime.pickles import RefusedError, read_pickle
from ..runtime.text import list_names
from ..runtime.torch_files import read_weights

_TANH = ("sac", "cql", "cal_ql", "ddpg", "td3", "td3_plus_bc", "iql", "awac", "rebrac", "prdc")
_PARTS = {  # algorithm → the module that acts, and whether its actions are discrete
    **dict.fromkeys(_TANH, ("policy", False)),
    "bc": ("imitator", False),
    "discrete_sac": ("policy", True),
    "discrete_bc": ("imitator", True),
    **dict.fromkeys(("dqn", "double_dqn", "discrete_cql", "nfq"), ("q_funcs", True)),
}
_SEQUENCES = ("decision_transformer", "discrete_decision_transformer", "tacr")
_ACTIVATIONS = {"swish": "silu", "none": "identity"}
_SCALERS = {"standard": ("mean", "std"), "min_max": ("minimum", "maximum")}
_OTHER_LAYERS = ("use_batch_norm", "use_layer_norm", "exclude_last_activation", "last_activation")


def read(path: Path, options: ReadingOptions) -> list[Policy]:
    """Read the policy in a `.d3` file."""
    saved = read_pickle(path)
    config, weights = read_json(saved["config"].encode()), read_weights(saved["torch"])
    if config["config"]["type"] in _SEQUENCES:
        raise ValueError(RECURRENT)

    def opened() -> Policy:
        return adapt(options.name, library("d3rlpy", "d3rlpy").load_learnable(str(path)))

    return [own_or_opened("d3rlpy", options, lambda: _actor(config, weights, options), opened)]


def _actor(config: dict[str, Any], weights: dict[str, Any], options: ReadingOptions) -> Actor:
    kind, params = config["config"]["type"], config["config"]["params"]
    if len(shape := config.get("observation_shape") or [0]) != 1:
        raise RefusedError(f"it reads observations of shape {tuple(shape)}")
    if kind not in _PARTS:
        raise RefusedError(f"predict of {kind} uses more than one network (it samples and selects, or decodes)")
    module, is_discrete = _PARTS[kind]
    if module == "q_funcs" and (params.get("n_critics") != 1 or _typed(params, "q_func_factory")[0] != "mean"):
        raise RefusedError(f"{kind} with several or distributional critics")
    arrays, stem = flatten(weights[module], separator="."), "0." if module == "q_funcs" else ""
    activation, step = _encoder(params)
    last = [name for name in (f"{stem}_mu", f"{stem}_fc") if f"{name}.weight" in arrays]
    if not last:
        raise RefusedError(f"no layers that this package reads among {list_names([*arrays])}")
    _, scale = _scaler(params, "action_scaler", ("min_max",))
    scaler, sides = _scaler(params, "observation_scaler", tuple(_SCALERS))
    standardisation = None
    if scaler == "standard":
        epsilon = params["observation_scaler"]["params"].get("eps", 1e-3)
        standardisation = Standardisation(sides[0], sides[1] + epsilon)
    elif sides:
        standardisation = Standardisation((sides[0] + sides[1]) / 2, (sides[1] - sides[0]) / 2)
    return Actor(
        options.name,
        perceptron(arrays, [*layer_names(arrays, f"{stem}_encoder._layers.{{}}", step=step), last[0]]),
        activation=activation,
        squash=not is_discrete,
        scale=Bounds(*(side.float() for side in scale)) if scale else None,
        standardisation=standardisation,
        is_discrete=is_discrete,
    )


def _typed(params: dict[str, Any], key: str) -> tuple[str, dict[str, Any]]:
    value = params.get(key) or {}
    return value.get("type", "none"), value.get("params") or {}


def _encoder(params: dict[str, Any]) -> tuple[str, int]:
    """Return the activation, and the number of modules from a linear layer to the next one."""
    key = "actor_encoder_factory" if "actor_encoder_factory" in params else "encoder_factory"
    kind, encoder = _typed(params, key)
    extra = [option for option in _OTHER_LAYERS if encoder.get(option)]
    if kind not in ("default", "vector") or extra:
        raise RefusedError(f"its encoder is {kind} with {', '.join(extra) or 'layers of another kind'}")
    name = encoder.get("activation", "relu")
    name = _ACTIVATIONS.get(name, name)
    if name not in ACTIVATIONS:
        raise RefusedError(f"its activation is {name}")
    return name, 3 if encoder.get("dropout_rate") else 2


def _scaler(params: dict[str, Any], key: str, kinds: tuple[str, ...]) -> tuple[str, tuple[torch.Tensor, ...]]:
    """Return the kind of a scaler and its two arrays; none without one."""
    kind, values = _typed(params, key)
    if kind == "none":
        return kind, ()
    if kind not in kinds:
        raise RefusedError(f"its {key.replace('_', ' ')} is {kind}")
    try:
        return kind, tuple(torch.tensor(values[side], dtype=torch.float64, device="cpu") for side in _SCALERS[kind])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its {kind} scaler was saved before it was fitted") from error
