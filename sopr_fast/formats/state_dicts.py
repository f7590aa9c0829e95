"""State dicts (`torch.save`, safetensors, NumPy, pickles), for the user's network or by one table of libraries' names.

With `module`, weights are loaded strictly into the network that the user builds. Without, a file is read only if its
names are exactly those of a row of `FORMS`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load
from torch import nn

from ..inputs.named_arrays import flatten
from ..inputs.policies.actor import ACTIVATIONS, Actor, Arrays, Standardisation, floats, layer_names, perceptron
from ..inputs.policies.callables import acts, adapt
from ..inputs.policies.output import Bounds, to_array
from ..inputs.policies.policy import Policy
from ..inputs.policies.policy_files import ReadingOptions
from ..runtime.containers import member_names, open_archive
from ..runtime.files import read_regular
from ..runtime.pickles import RefusedError, read_pickle
from ..runtime.tensor_files import is_own
from ..runtime.text import list_names, one_line, printable
from ..runtime.torch_files import read_weights
from ..runtime.warn import warn


class Form(NamedTuple):
    """What a library's files have and what its code does; "" where a file, or the user, says it."""

    library: str
    suffix: str
    body: str  # names of layers, with {} for their number
    first: int = 0  # number of the first layer
    step: int = 2  # from a layer to the next one: 2 if activations have a number too
    last: str = ""  # name of the last layer, "" if it is numbered as the others
    activation: str = ""
    squash: str = ""
    says: tuple[str, str] = ("", "")  # names of texts that say the activation and the squashing
    is_discrete: bool = False
    scale: tuple[str, ...] = ()  # names of half the width and of the middle of the range of actions
    statistics: tuple[str, ...] = ()  # what names of `_mean` and `_std` of states may begin with
    any_of: tuple[str, ...] = ()  # names, one of which the file has
    others: tuple[str, ...] = ()  # what names of arrays that do not act begin with
    warning: str = ""


_UNKNOWN_STATISTICS = (
    "scripts of CleanRL standardise states by statistics that they do not save: if one did, rank with states "
    "standardised in the same way"
)
_CLEANRL, _SCALE = ".cleanrl_model", ("action_scale", "action_bias")
_CRITICS = ("model_state_dict.critic", "model_state_dict.std", "model_state_dict.log_std", "critic", "rnd_state_dict")
FORMS = (
    Form("CleanRL's PPO", _CLEANRL, "actor_mean.{}", activation="tanh", squash="none",
         others=("actor_logstd", "critic."), warning=_UNKNOWN_STATISTICS),
    Form("CleanRL's PPO", _CLEANRL, "actor.{}", activation="tanh", is_discrete=True, others=("critic.",)),
    Form("CleanRL's DQN", _CLEANRL, "network.{}", activation="relu", is_discrete=True),
    Form("CleanRL's DDPG and TD3", _CLEANRL, "fc{}", 1, 1, "fc_mu", activation="relu", squash="tanh", scale=_SCALE),
    Form("rsl_rl", ".pt", "model_state_dict.actor.{}", squash="none", others=_CRITICS,
         any_of=("model_state_dict.std", "model_state_dict.log_std"),
         statistics=("obs_norm_state_dict.", "model_state_dict.actor_obs_normalizer.")),
    Form("rsl_rl", ".pt", "actor_state_dict.mlp.{}", squash="none",
         others=(*_CRITICS, "actor_state_dict.distribution."), statistics=("actor_state_dict.obs_normalizer.",),
         any_of=("actor_state_dict.distribution.std_param", "actor_state_dict.distribution.log_std_param")),
    Form("D4RL", ".pkl", "fc{}", 0, 1, "last_fc", says=("nonlinearity", "output_distribution"),
         others=("last_fc_log_std.",)),
    Form("sopr_fast", "", "hidden_{}", 0, 1, "mean", activation="relu", squash="tanh",
         says=("activation", "squash"), scale=_SCALE, others=("log_std.",)),
)  # fmt: skip
_WORDS = {"tanh_gaussian": "tanh", "gaussian": "none"}
_NO_POLICY = "move the file to another folder if it is no policy"
_EPSILON = 1e-2  # that rsl_rl adds to deviations


def read_torch(path: Path, options: ReadingOptions) -> Sequence[Policy]:
    """Read the policy in a file of `torch.save` or of `pickle`: weights, or, with trust, a pickled module."""
    is_torch = path.suffix.lower() not in (".pkl", ".pickle") or bool(member_names(path))
    try:
        content = read_weights(path) if is_torch else read_pickle(path)
    except RefusedError as error:
        if not is_torch:
            raise RefusedError(f"{error}; open it in Python and pass what acts, or {_NO_POLICY}") from error
        if not options.trust:
            raise RefusedError(f"{error}; trust=True opens it as code, if you trust its maker") from error
        content = torch.load(path, map_location="cpu", weights_only=False)
    return [_read(content, options, path)]


def read_safetensors(path: Path, options: ReadingOptions) -> Sequence[Policy]:
    """Read the policy in a safetensors file. The file is not mapped, since overwriting it would end the process."""
    data = read_regular(path)
    if is_own(data):
        raise ValueError("a model or a checkpoint of sopr_fast, not a policy: move it to another folder")
    return [_read(load(data), options, path)]


def read_npz(path: Path, options: ReadingOptions) -> Sequence[Policy]:
    """Read the policy in a file of NumPy, or a stack of them."""
    with open_archive(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.names]
        if {"observations", "rewards"} & {*names}:
            raise ValueError("a log, not a policy: move it to another folder; in Python, policies come before the log")
        arrays = {name: archive.array(f"{name}.npy") for name in names}
    layers = {key: value for key, value in arrays.items() if key.endswith((".weight", ".bias"))}
    counts = {len(value) if value.ndim > 1 + key.endswith(".weight") else 0 for key, value in layers.items()}
    if options.module is not None or not any(counts):
        return [_read(arrays, options, path)]
    if len(counts) > 1:
        shapes = ", ".join(f"{key} {value.shape}" for key, value in sorted(layers.items()))
        raise ValueError(f"its arrays are not layers of one number of stacked policies: {shapes}")
    stacks = [arrays | {key: value[i] for key, value in layers.items()} for i in range(counts.pop())]
    named = [replace(options, name=f"{options.name}-{i:03d}") for i in range(len(stacks))]
    return [_read(own, each, path) for own, each in zip(stacks, named, strict=True)]


def _read(content: Any, options: ReadingOptions, path: Path) -> Policy:
    """Return the policy of a state dict or checkpoint: what acts in it, the user's module, or that of a known form."""
    if acts(content):
        return adapt(options.name, content)
    arrays = _flatten(content)
    if options.key is not None:
        arrays = _under(arrays, options.key)
        if acts(arrays.get("")):
            return adapt(options.name, arrays[""])
    if options.module is not None:
        return adapt(options.name, _built(options.module, _arrays(arrays)))
    for form in FORMS:
        if names := _layers(form, path.suffix.lower(), arrays):
            return _of_form(form, names, arrays, options, path)
    if not (shapes := [f"{name} {tuple(value.shape)}" for name, value in _arrays(arrays).items()]):
        found = list_names([*map(str, arrays)])
        raise ValueError(f"expected arrays, found {found}; pass a callable of states instead, or {_NO_POLICY}")
    keys = [*dict.fromkeys(name.partition(".")[0] for name in _arrays(arrays) if name.count(".") > 1)]
    key = f", key={keys[0]!r}" if keys else ""
    choice = f", where key is one of {list_names(keys)}" if len(keys) > 1 else ""
    raise ValueError(
        f"a state dict does not say its network. Build it: load_policies({printable(path)!r}, module=make_actor{key}), "
        f"where make_actor() returns the torch.nn.Module from states to actions{choice}; or {_NO_POLICY}; its arrays "
        f"are {list_names(shapes, 12)}"
    )


def _flatten(content: Any) -> dict[str, Any]:
    """Return values in nested mappings by dotted names, without states of optimisers; of a tuple or list, the first."""
    content = content[0] if isinstance(content, tuple | list) and content else content
    values = flatten(content, separator=".") if isinstance(content, Mapping) else {}
    optimisers = tuple(name.removesuffix("param_groups") for name in values if name.endswith(".param_groups"))
    return {name.replace("/", "."): value for name, value in values.items() if not name.startswith(optimisers)}


def _arrays(arrays: Arrays) -> dict[str, Any]:
    """Return the values that are arrays or tensors."""
    return {key: value for key, value in arrays.items() if hasattr(value, "ndim") and hasattr(value, "shape")}


def _under(arrays: Arrays, key: str) -> dict[str, Any]:
    """Return the values whose names begin with a dotted key, by the rest of their names."""
    own = {name[len(key) + 1 :]: value for name, value in arrays.items() if f"{name}.".startswith(f"{key}.")}
    if not own:
        seen = dict.fromkeys(name.partition(".")[0] for name in arrays)
        raise ValueError(f"nothing under key={key!r}, its keys are {list_names([*seen])}")
    return own


def _built(make: Any, arrays: Arrays) -> nn.Module:
    """Return the user's module with these weights, or raise ValueError if it fails, or names or shapes differ."""
    try:
        module = copy.deepcopy(make) if isinstance(make, nn.Module) else make()
    except Exception as error:
        raise ValueError(f"module=… raised {type(error).__name__}, called without arguments: {error}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(f"module=… made a {type(module).__name__}, expected a torch.nn.Module")
    values = {name: to_array(value) for name, value in arrays.items()}
    try:
        module.load_state_dict(
            {name: torch.tensor(x) if x.dtype.kind in "iub" else floats(arrays, name) for name, x in values.items()}
        )
    except RuntimeError as error:  # it lists what is missing, what is left, and other shapes
        text = one_line(error)
        hint = " If the file holds them under a key, pass key=…" if "Unexpected key" in text else ""
        raise ValueError(f"its weights are not those of the module: {text}{hint}") from None
    return module.eval()


def _layers(form: Form, suffix: str, arrays: Arrays) -> list[str]:
    """Return the names of the actor's layers if a file is of the form, and has no other array that may act."""
    names = layer_names(arrays, form.body, form.first, form.step)
    names += [form.last] if f"{form.last}.weight" in arrays else []
    if not names or not suffix.endswith(form.suffix) or (form.last and names[-1] != form.last):
        return []
    if form.any_of and not any(name in arrays for name in form.any_of):
        return []
    read = {f"{name}.{part}" for name in names for part in ("weight", "bias")} | {*form.scale}
    others = (*form.others, *form.statistics)
    left = [key for key, x in _arrays(arrays).items() if x.ndim and key not in read and not key.startswith(others)]
    return [] if left else names


def _of_form(form: Form, names: list[str], arrays: Arrays, options: ReadingOptions, path: Path) -> Actor:
    """Return the actor of a file of a known form."""
    said = str(arrays.get(form.says[0], form.activation))
    if said and options.activation not in (None, said):
        raise ValueError(f"its activation is {said}: leave activation=… out, or write it into the file")
    if (activation := said or options.activation) is None:
        raise ValueError(f"a file of {form.library} does not say its activation: pass activation=…")
    squash = str(arrays.get(form.says[1], form.squash))
    squash = _WORDS.get(squash, squash)
    if activation not in ACTIVATIONS:
        raise ValueError(f"its activation is {activation!r}, expected one of {', '.join(ACTIVATIONS)}")
    if not form.is_discrete and squash not in ("tanh", "none"):
        raise ValueError(f"a file of {form.library} whose {form.says[1]!r} is {squash!r}, expected tanh or none")
    standardisation = scale = None
    if statistics := [start for start in form.statistics if f"{start}_mean" in arrays]:
        mean, std = (floats(arrays, f"{statistics[0]}{part}").double().flatten() for part in ("_mean", "_std"))
        standardisation = Standardisation(mean, std + _EPSILON)
    elif form.warning:
        warn(f"{printable(path)}: {form.warning}")
    if form.scale and form.scale[0] in arrays:
        half, middle = (floats(arrays, name).float().flatten() for name in form.scale)
        scale = Bounds(middle - half, middle + half)
    return Actor(
        options.name,
        perceptron(arrays, names),
        activation=activation,
        squash=squash == "tanh",
        standardisation=standardisation,
        scale=scale,
        is_discrete=form.is_discrete,
    )
