"""Stable-Baselines3's `.zip`: weights and settings of its multilayer perceptrons, normalised by `vecnormalize.pkl`."""

from __future__ import annotations

import base64
import inspect
import io
import json
import math
import pickle
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..actor import ACTIVATIONS, Actor, Bounds, Standardisation
from ..called import Called
from ..policy import Policy
from .layers import floats, layer, numbered, perceptron
from .options import Options, library
from .pickles import Record, RefusedError, read_pickle, read_weights_in

_SPACES = ("gymnasium.spaces.", "gym.spaces.", "gym.utils.seeding.", "numpy.random.")
_OWN = ("stable_baselines3.", "sb3_contrib.")
_MODULES = re.compile(
    r"stable_baselines3\.((common|sac|td3|dqn)\.policies)|sb3_contrib\.((tqc|ars)\.policies|common\.maskable\.policies)"
)
_NO_ACTOR = re.compile(r"critic.*|\w+_target.*|value_net|mlp_extractor\.value_net.*|(actor\.)?log_std")
_FLATTEN = "<class 'stable_baselines3.common.torch_layers.FlattenExtractor'>"
_SDE_MEAN_CLIP = 2.0  # the libraries' default clip_mean of gSDE


def read(path: Path, options: Options) -> list[Policy]:
    try:
        with zipfile.ZipFile(path) as archive:
            settings, weights = json.loads(archive.read("data")), archive.read("policy.pth")
    except (KeyError, OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"damaged, or no model of Stable-Baselines3 ({error})") from error
    statistics = _statistics_beside(path)
    try:
        standardisation = None if statistics is None else _standardisation(statistics)
        return [_actor(settings, read_weights_in(weights), standardisation, options)]
    except RefusedError as error:
        if not options.trust:
            raise RefusedError(
                f"{error}; trust=True (--trust) lets stable-baselines3 open it, code included"
            ) from error
    return [Called(options.name, _Opened(path, statistics), options.action_count)]


@dataclass(frozen=True)
class _Network:
    """Where the libraries keep an actor's layers, and what follows them."""

    layers: list[str]
    activation: str = "relu"
    squash: bool = False
    log_std: Any = None
    log_std_bounds: tuple[float, float] = (-20, 2)
    mean_clip: float = math.inf


def _actor(
    settings: dict[str, Any], arrays: dict[str, Tensor], standardisation: Standardisation | None, options: Options
) -> Actor:
    policy_class = _unpickled(settings, "policy_class", _OWN)
    source = policy_class.source if isinstance(policy_class, type) and issubclass(policy_class, Record) else "?"
    if not _MODULES.fullmatch(source.rpartition(".")[0]):
        raise RefusedError(f"a policy of class {source}, which our own reader does not know")
    keywords = settings.get("policy_kwargs") or {}
    extractor = keywords.get("features_extractor_class", _FLATTEN)
    if extractor != _FLATTEN or any("features_extractor" in key for key in arrays):
        raise RefusedError("it extracts features from observations by a network of its own")
    observed = _space(settings, "observation_space", "box.Box")
    if len(observed._shape) != 1:
        raise RefusedError(f"observations of shape {tuple(observed._shape)}, expected one dimension")
    network = _network(arrays, source, settings, keywords)
    parts = {re.sub(r"\.(weight|bias)$", "", key) for key in arrays} - set(network.layers)
    if unknown := sorted(part for part in parts if not _NO_ACTOR.fullmatch(part)):
        raise RefusedError(f"a network that our own reader does not know, with {', '.join(unknown[:6])}")
    layers = perceptron(arrays, network.layers, bias=False)
    space = _space(settings, "action_space", "box.Box", "discrete.Discrete")
    shared = {"activation": _activation(keywords, network.activation), "standardisation": standardisation}
    if space.source.endswith("Discrete"):
        head = "logits" if "mlp_extractor" in network.layers[0] or network.layers == ["action_net"] else "values"
        return Actor(options.name, layers, squash=False, head=head, **shared)
    bounds = Bounds(*(torch.from_numpy(np.array(side, np.float32).reshape(-1)) for side in (space.low, space.high)))
    clip = None if network.squash else bounds
    if network.mean_clip < math.inf:
        unit = torch.full_like(bounds.low, network.mean_clip).tanh()
        clip = Bounds(bounds.from_unit(-unit), bounds.from_unit(unit))
    return Actor(
        options.name,
        layers,
        squash=network.squash,
        scale=bounds if network.squash else None,
        clip=clip,
        log_std=network.log_std,
        log_std_bounds=network.log_std_bounds,
        stochastic=options.stochastic,
        **shared,
    )


def _network(arrays: dict[str, Tensor], source: str, settings: dict, keywords: dict) -> _Network:
    names = numbered(arrays, "actor.latent_pi.")
    if "actor.log_std.weight" in arrays:  # SAC, TQC
        return _Network([*names, "actor.mu"], squash=True, log_std=layer(arrays, "actor.log_std"))
    if "actor.log_std" in arrays:  # the same with state-dependent exploration
        clip = float(keywords.get("clip_mean", _SDE_MEAN_CLIP))
        if clip > 0:
            return _Network([*names, "actor.mu.0"], squash=True, mean_clip=clip)
        return _Network([*names, "actor.mu"], squash=True)
    if "actor.mu.0.weight" in arrays:  # TD3, DDPG
        return _Network(numbered(arrays, "actor.mu."), squash=True)
    if "q_net.q_net.0.weight" in arrays:  # DQN
        return _Network(numbered(arrays, "q_net.q_net."))
    if "action_net.weight" in arrays:  # PPO, A2C, TRPO
        parts = ("shared_net", "policy_net")  # the first in versions before 2.0
        names = [*(name for part in parts for name in numbered(arrays, f"mlp_extractor.{part}.")), "action_net"]
        if keywords.get("squash_output"):
            return _Network(names, "tanh", squash=True)
        spread = arrays.get("log_std")
        log_std = floats(arrays, "log_std") if spread is not None and not settings.get("use_sde") else None
        return _Network(names, "tanh", log_std=log_std, log_std_bounds=(-math.inf, math.inf))
    if "action_net.0.weight" in arrays:  # ARS
        squash = bool(keywords.get("squash_output", not source.endswith("LinearPolicy")))
        return _Network(numbered(arrays, "action_net."), squash=squash)
    raise RefusedError(f"no actor that our own reader knows among {', '.join(list(arrays)[:6])}, …")


def _activation(keywords: dict[str, Any], default: str) -> str:
    if "activation_fn" not in keywords:
        return default
    named = str(keywords["activation_fn"])  # "<class 'torch.nn.modules.activation.Tanh'>"
    name = named.rpartition(".")[2].rstrip("'>").lower()
    known = next((key for key in ACTIVATIONS if key.replace("_", "") == name), None)
    if known is None or "torch.nn.modules." not in named:
        raise RefusedError(f"its activation is {named}")
    return known


def _space(settings: dict[str, Any], key: str, *kinds: str) -> Any:
    space = _unpickled(settings, key, _SPACES)
    if not isinstance(space, Record) or not space.source.endswith(kinds):
        raise RefusedError(f"its {key} is {getattr(space, 'source', type(space).__name__)}")
    return space


def _unpickled(settings: dict[str, Any], key: str, records: tuple[str, ...]) -> Any:
    try:
        data = base64.b64decode(settings[key][":serialized:"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no {key} in its settings") from error
    return read_pickle(io.BytesIO(data), records=records)


def _statistics_beside(path: Path) -> Path | None:
    """A model's own by name, or the folder's."""
    checkpoint = re.fullmatch(r"(.*)_(\d+_steps)", path.stem)  # the naming of CheckpointCallback
    names = [f"{checkpoint[1]}_vecnormalize_{checkpoint[2]}.pkl"] if checkpoint else []
    names += [f"{path.stem}_vecnormalize.pkl", f"{path.stem}/vecnormalize.pkl", "vecnormalize.pkl", "vec_normalize.pkl"]
    return next((file for name in names if (file := path.parent / name).is_file()), None)


def _standardisation(path: Path) -> Standardisation | None:
    try:
        with path.open("rb") as file:
            statistics = read_pickle(file, records=(*_SPACES, *_OWN))
        if not statistics.norm_obs:
            return None
        mean, variance = (
            torch.from_numpy(np.array(v, np.float64)) for v in (statistics.obs_rms.mean, statistics.obs_rms.var)
        )
        return Standardisation(mean, (variance + statistics.epsilon).sqrt(), float(statistics.clip_obs))
    except RefusedError as error:
        raise RefusedError(f"{path.name} beside it: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} beside it: {error}") from error


class _Opened:
    """A policy that stable-baselines3 itself has opened, with `predict`."""

    def __init__(self, path: Path, statistics: Path | None):
        data, parameters, _ = library("stable_baselines3.common.save_util", "sb3").load_from_zip_file(
            path, device="cpu"
        )
        kind, keywords = data["policy_class"], dict(data.get("policy_kwargs") or {})
        offered = {"lr_schedule": lambda _: 0.0, "use_sde": data.get("use_sde", False)}
        accepted = inspect.signature(kind.__init__).parameters
        keywords = {key: value for key, value in offered.items() if key in accepted} | keywords
        self._policy = kind(data["observation_space"], data["action_space"], **keywords)
        self._policy.load_state_dict(parameters["policy"])
        self._normalise = None if statistics is None else pickle.loads(statistics.read_bytes()).normalize_obs

    def predict(self, states: np.ndarray, deterministic: bool = True) -> np.ndarray:
        if self._normalise is not None:
            states = self._normalise(states)
        return self._policy.predict(states, deterministic=deterministic)[0]
