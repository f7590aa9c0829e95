"""Stable-Baselines3's `.zip` files: weights and settings of its multilayer perceptrons."""

from __future__ import annotations

import base64
import inspect
import logging
import math
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....runtime.archives import open_archive, read_members
from ....runtime.extras import library
from ....runtime.pickles import SB3_RECORDS, SPACE_RECORDS, Record, RefusedError, read_pickle, read_weights
from ....runtime.text import printable
from ..actor import ACTIVATIONS, Actor, Standardisation
from ..callables import Called, adapt
from ..output import Bounds
from ..policy import Policy
from ..unsupported import RECURRENT, check_spaces, shape_of, warn_of_masks
from .layers import floats, layer, perceptron
from .networks import find_network
from .options import Options, parse_settings
from .vecnormalize import find_statistics, read_standardisation

_log = logging.getLogger("sopr_fast")
_MODULES = re.compile(
    r"stable_baselines3\.((common|sac|td3|dqn)\.policies)|sb3_contrib\.((tqc|ars|qrdqn)\.policies|common\.maskable\.policies)"
)
_ARGMAX = re.compile(r"stable_baselines3\.dqn\.|sb3_contrib\.(ars|qrdqn)\.")  # policies that choose the largest value
# Parts of a model that do not change its deterministic action.
_NO_ACTOR = re.compile(
    r"critic.*|\w+_target.*|value_net|mlp_extractor\.value_net.*|(actor\.)?(log_std|sde_features_extractor.*)"
)
_FLATTEN = "<class 'stable_baselines3.common.torch_layers.FlattenExtractor'>"
_SPACES = ("observation_space", "action_space")
_SDE_MEAN_CLIP = 2.0  # the libraries' default clip_mean of gSDE


def read(path: Path, options: Options) -> Sequence[Policy]:
    """Read the actor in a model, with the statistics that belong to it; see `find_statistics`.

    Raises:
        RefusedError: The model needs `trust`.
        ValueError: The file is damaged, or the model is recurrent.
    """
    with open_archive(path) as archive:
        members = read_members(archive, ["data", "policy.pth"])
    settings = parse_settings(members["data"])
    statistics = find_statistics(path, settings)
    policy: Policy
    try:
        check_spaces(*((settings.get(key) or {}).get(":type:", "") for key in _SPACES))
        standardisation = None if statistics is None else read_standardisation(statistics)
        policy = _actor(settings, read_weights(members["policy.pth"]), standardisation, options)
        is_standardised = standardisation is not None
    except RefusedError as error:
        if not options.trust:
            raise RefusedError(
                f"{error}; trust=True (--trust) lets stable-baselines3 open it, code included"
            ) from error
        policy = _opened(path, statistics, options)
        is_standardised = policy.normalisation is not None
    if is_standardised:
        policy.normalisation = str(statistics)
        _log.info("%s: states are standardised by %s", printable(path), printable(statistics))
    return [policy]


def _actor(
    settings: dict[str, Any], arrays: dict[str, Tensor], standardisation: Standardisation | None, options: Options
) -> Actor:
    if any(key.startswith("lstm_actor.") for key in arrays):
        raise ValueError(RECURRENT)
    if len(shape := shape_of(_unpickled(settings, "observation_space", SPACE_RECORDS))) > 2:
        raise RefusedError(f"it reads images of shape {shape}")
    policy_class = _unpickled(settings, "policy_class", SB3_RECORDS)
    source = policy_class.source if isinstance(policy_class, type) and issubclass(policy_class, Record) else "?"
    if not _MODULES.fullmatch(source.rpartition(".")[0]):
        raise RefusedError(f"a policy of class {source}, which this package does not read")
    warn_of_masks(options.name, source)
    keywords = settings.get("policy_kwargs") or {}
    extractor = keywords.get("features_extractor_class", _FLATTEN)
    if extractor != _FLATTEN or any(re.search(r"(?<!sde_)features_extractor", key) for key in arrays):
        raise RefusedError("it extracts features from observations by a network of its own")
    try:
        network = find_network(arrays)
        layers = perceptron(arrays, network.layers)
    except ValueError as error:
        raise RefusedError(f"no actor that this package reads among {', '.join(list(arrays)[:6])}") from error
    parts = {re.sub(r"\.(weight|bias)$", "", key) for key in arrays} - {*network.layers, network.log_std}
    if unknown := sorted(part for part in parts if not _NO_ACTOR.fullmatch(part)):
        raise RefusedError(f"a network that this package does not read, with {', '.join(unknown[:6])}")
    space = _unpickled(settings, "action_space", SPACE_RECORDS)
    space_kind = getattr(space, "source", type(space).__name__)
    shared: dict[str, Any] = {
        "activation": _activation(keywords, "tanh" if network.layers[-1] == "action_net" else "relu"),
        "standardisation": standardisation,
    }
    if space_kind.endswith("discrete.Discrete"):
        weight, bias = layers.pop()
        if "qrdqn" in source and len(bias) % int(space.n) == 0:  # the library views outputs as (quantiles, actions)
            weight, bias = weight.view(-1, int(space.n), weight.shape[1]).mean(0), bias.view(-1, int(space.n)).mean(0)
        if space.n != len(bias):
            raise ValueError(f"its network has {len(bias)} outputs, its action space n={space.n}")
        head = "values" if _ARGMAX.match(source) else "logits"
        return Actor(
            options.name, [*layers, (weight, bias)], squash=False, head=head, stochastic=options.stochastic, **shared
        )
    if not space_kind.endswith("box.Box"):
        raise RefusedError(f"its action_space is {space_kind}")
    bounds = Bounds(*(torch.from_numpy(np.array(side, np.float32).reshape(-1)) for side in (space.low, space.high)))
    is_off_policy = network.layers[-1].startswith("actor.")
    is_policy_of_ars = network.layers[-1].startswith("action_net.") and not source.endswith("LinearPolicy")
    squash = is_off_policy or bool(keywords.get("squash_output", is_policy_of_ars))
    clip = None if squash else bounds
    mean_clip = float(keywords.get("clip_mean", _SDE_MEAN_CLIP)) if "actor.log_std" in arrays else 0.0  # gSDE
    if mean_clip > 0:
        unit = torch.full_like(bounds.low, mean_clip).tanh()
        clip = Bounds(bounds.from_unit(-unit), bounds.from_unit(unit))
    log_std: Any = layer(arrays, network.log_std) if network.log_std else None
    if "log_std" in arrays and not settings.get("use_sde") and not squash:
        log_std = floats(arrays, "log_std")
    return Actor(
        options.name,
        layers,
        squash=squash,
        scale=bounds if squash else None,
        clip=clip,
        log_std=log_std,
        log_std_bounds=(-20, 2) if network.log_std else (-math.inf, math.inf),
        stochastic=options.stochastic,
        **shared,
    )


def _activation(keywords: dict[str, Any], default: str) -> str:
    if "activation_fn" not in keywords:
        return default
    text = str(keywords["activation_fn"])  # "<class 'torch.nn.modules.activation.Tanh'>"
    name = text.rpartition(".")[2].rstrip("'>").lower()
    activation = next((key for key in ACTIVATIONS if key.replace("_", "") == name), None)
    if activation is None or "torch.nn.modules." not in text:
        raise RefusedError(f"its activation is {text}")
    return activation


def _unpickled(settings: dict[str, Any], key: str, records: tuple[str, ...]) -> Any:
    return read_pickle(base64.b64decode(settings[key][":serialized:"]), records=records)


def _opened(path: Path, statistics: Path | None, options: Options) -> Called:
    """Return the policy that stable-baselines3 itself opens."""
    data, parameters, _ = library("stable_baselines3.common.save_util", "sb3").load_from_zip_file(path, device="cpu")
    kind, keywords = data["policy_class"], dict(data.get("policy_kwargs") or {})
    keywords.pop("device", None)  # of versions before 1.0
    convert = library("stable_baselines3.common.vec_env.patch_gym", "sb3")._convert_space  # of gym
    optional = {"lr_schedule": lambda _: 0.0, "use_sde": data.get("use_sde", False)}
    accepted = inspect.signature(kind.__init__).parameters
    keywords = {key: value for key, value in optional.items() if key in accepted} | keywords
    policy = kind(*(convert(data[key]) for key in _SPACES), **keywords)
    policy.load_state_dict(parameters["policy"])
    unpickled = None if statistics is None else pickle.loads(statistics.read_bytes())
    return adapt(options.name, policy, options.action_count, statistics=unpickled)
