"""Stable-Baselines3's `.zip` files: weights and settings of its perceptrons, and statistics of observations."""

from __future__ import annotations

import base64
import inspect
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...inputs.policies import callables
from ...inputs.policies.actor import ACTIVATIONS, Actor, Standardisation, layer_names, perceptron
from ...inputs.policies.output import Bounds
from ...inputs.policies.policy import Policy
from ...inputs.policies.policy_files import ReadingOptions
from ...runtime.containers import open_archive, read_json
from ...runtime.extras import library
from ...runtime.pickles import SB3_RECORDS, SPACE_RECORDS, Record, RefusedError, read_pickle
from ...runtime.text import list_names, printable
from ...runtime.torch_files import read_weights
from ...runtime.warn import warn

_MODULES = re.compile(
    r"stable_baselines3\.((common|sac|td3|dqn)\.policies)|sb3_contrib\.((tqc|ars|qrdqn)\.policies|common\.maskable\.policies)"
)
_FLATTEN = "<class 'stable_baselines3.common.torch_layers.FlattenExtractor'>"
_SPACES = ("observation_space", "action_space")
# Of all policies of multilayer perceptrons; shared_net is of versions before 2.
_LAYERS = "mlp_extractor.shared_net", "mlp_extractor.policy_net", "action_net", "actor.latent_pi", "actor.mu"
_IDLE = ("mlp_extractor.value_net", "actor.sde_features_extractor")  # beside the actor's layers
_SDE_MEAN_CLIP = 2.0  # the libraries' default clip_mean of gSDE


def read(path: Path, options: ReadingOptions) -> Sequence[Policy]:
    """Read the actor in a model, with the statistics that belong to it; see `_find_statistics`."""
    with open_archive(path) as archive:
        names = {*archive.names}
        if {"data", "_stable_baselines3_version"} <= names and "policy.pth" not in names:
            raise ValueError("a model without torch, such as that of sbx: load it by its class and pass {name: model}")
        if not {"data", "policy.pth"} <= names:
            raise ValueError("no model that model.save of Stable-Baselines3 wrote: move it to another folder")
        data, weights = archive.read("data"), archive.read("policy.pth")
    settings = read_json(data)
    statistics = _find_statistics(path, settings)
    callables.check_spaces(*((settings.get(key) or {}).get(":type:", "") for key in _SPACES))
    try:
        return [_actor(settings, weights, statistics, options)]
    except RefusedError as error:
        if not options.trust:
            raise RefusedError(f"{error}; trust=True lets stable-baselines3 open it, code included") from error
    return [_opened(path, statistics, options)]


def _actor(settings: dict[str, Any], weights: bytes, statistics: Path | None, options: ReadingOptions) -> Actor:
    standardisation = None if statistics is None else _read_standardisation(statistics)
    arrays = read_weights(weights)
    if any(key.startswith("lstm_actor.") for key in arrays):
        raise ValueError(callables.RECURRENT)
    if len(shape := callables.shape_of(_unpickled(settings, "observation_space", SPACE_RECORDS))) > 2:
        raise RefusedError(f"it reads images of shape {shape}")
    policy_class = _unpickled(settings, "policy_class", SB3_RECORDS)
    source = policy_class.source if isinstance(policy_class, Record) else "?"
    if not _MODULES.fullmatch(source.rpartition(".")[0]):
        raise RefusedError(f"a policy of class {source}, which this package does not read")
    callables.warn_of_masks(options.name, source)
    keywords = settings.get("policy_kwargs") or {}
    extractor = keywords.get("features_extractor_class", _FLATTEN)
    if extractor != _FLATTEN or any(re.search(r"(?<!sde_)features_extractor", key) for key in arrays):
        raise RefusedError("it extracts features from observations by a network of its own")
    names = _layers(arrays)
    layers = perceptron(arrays, names)
    acting: dict[str, Any] = {
        "activation": _activation(keywords, "tanh" if names[-1] == "action_net" else "relu"),
        "standardisation": standardisation,
    }
    space = _unpickled(settings, "action_space", SPACE_RECORDS)
    if hasattr(space, "n"):
        weight, bias = layers.pop()
        if "qrdqn" in source and len(bias) % int(space.n) == 0:  # the library views outputs as (samples, actions)
            weight, bias = weight.view(-1, int(space.n), weight.shape[1]).mean(0), bias.view(-1, int(space.n)).mean(0)
        if space.n != len(bias):
            raise ValueError(f"its network has {len(bias)} outputs, its action space n={space.n}")
        return Actor(options.name, [*layers, (weight, bias)], squash=False, is_discrete=True, **acting)
    bounds = Bounds(*(torch.from_numpy(np.array(side, np.float32).reshape(-1)) for side in (space.low, space.high)))
    is_policy_of_ars = names[-1].startswith("action_net.") and not source.endswith("LinearPolicy")
    squash = names[-1].startswith("actor.") or bool(keywords.get("squash_output", is_policy_of_ars))
    clip = None if squash else bounds
    mean_clip = float(keywords.get("clip_mean", _SDE_MEAN_CLIP)) if "actor.log_std" in arrays else 0.0  # gSDE
    if mean_clip > 0:
        unit = torch.full_like(bounds.low, mean_clip).tanh()
        clip = Bounds(bounds.from_unit(-unit), bounds.from_unit(unit))
    return Actor(options.name, layers, squash=squash, scale=bounds if squash else None, clip=clip, **acting)


def _layers(arrays: dict[str, Tensor]) -> list[str]:
    """Return the names of the actor's layers, all of which are known; a part is a layer or a numbered sequence."""
    names: list[str] = []
    first = next(iter(arrays), "").partition(".")[0]  # DQN's network, and QR-DQN's, is in a module of its own name
    for part in (*_LAYERS, f"{first}.{first}"):
        names += [part] if f"{part}.weight" in arrays else layer_names(arrays, f"{part}.{{}}")
    read = {f"{name}.{side}" for name in (*names, "actor.log_std") for side in ("weight", "bias")} | {"actor.log_std"}
    acting = tuple(f"{part.partition('.')[0]}." for part in names)
    if not names or any(key.startswith(acting) and key not in read and not key.startswith(_IDLE) for key in arrays):
        raise RefusedError(f"no actor that this package reads among {list_names([*arrays], 6)}")
    return names


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


def _opened(path: Path, statistics: Path | None, options: ReadingOptions) -> callables.Called:
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
    return callables.adapt(options.name, policy, statistics=unpickled)


def _find_statistics(path: Path, settings: dict[str, Any]) -> Path | None:
    """Return the file of statistics of the model at `path`, or None if there is none, with a warning if one may miss.

    It is the model's own by name, else that of its folder, else, as in the RL Zoo, the only `vecnormalize.pkl` in the
    folders next to it. A model that was trained without `VecNormalize`, by its settings, has only those of its name.
    """
    folder, stem = path.parent, path.stem
    names = [f"{stem}_vecnormalize.pkl", f"{stem}/vecnormalize.pkl"]
    prefix, _, step = stem.removesuffix("_steps").rpartition("_")
    if stem.endswith("_steps") and step.isdecimal():  # as CheckpointCallback names them
        names.insert(0, f"{prefix}_vecnormalize_{step}_steps.pkl")
    # With VecNormalize, training keeps an observation as the environment gave it; off-policy algorithms always do.
    is_known = settings.get("_last_obs") is not None and "_last_original_obs" in settings
    is_raw = is_known and settings["_last_original_obs"] is None
    names += [] if is_raw else ["vecnormalize.pkl", "vec_normalize.pkl"]
    found = [file for name in names if (file := folder / name).is_file()]
    if found or is_raw:
        return found[0] if found else None
    remedy = f"copy the statistics that belong to it to {printable(stem)}_vecnormalize.pkl next to it"
    beside = sorted(file for file in folder.glob("*/vecnormalize.pkl") if file.is_file())
    if len(beside) > 1:
        files = list_names([str(file.relative_to(folder)) for file in beside])
        raise ValueError(f"several statistics could belong to it: {files}; {remedy}")
    if beside:
        return beside[0]
    others = [file.name for place in (folder, folder.resolve().parent) for file in sorted(place.glob("*ormalize*.pkl"))]
    if others or (is_known and "buffer_size" not in settings):
        seen = f"its folder, or the one above, has {list_names(others)}"
        why = seen if others else "the model was trained with VecNormalize"
        what = f"states are not standardised, though {why}; {remedy}, unless your states are standardised already"
        warn(f"{printable(path)}: {what}")
    return None


def _read_standardisation(path: Path) -> Standardisation | None:
    """Read a file that `VecNormalize.save` wrote."""
    try:
        return callables.standardisation_of(read_pickle(path, records=(*SPACE_RECORDS, *SB3_RECORDS)), str(path))
    except Exception as error:  # a damaged pickle may raise nearly any
        kind = RefusedError if isinstance(error, RefusedError) else ValueError
        raise kind(f"statistics in {path.name}: {error}") from error
