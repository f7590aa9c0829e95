"""Actors from files of weights (`torch.save`, safetensors, NumPy, pickles), by the table of names and the options."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from ..inputs.logs.keys import KEYS, check_is_policy
from ..inputs.policies.actor import Actor, Layer, Standardisation
from ..inputs.policies.callables import RECURRENT, acts
from ..inputs.policies.options import DISCRETE, HEADS, Options
from ..inputs.policies.output import Bounds
from ..inputs.policies.policy import Policy
from ..runtime.files import read_regular
from ..runtime.tensor_files import is_own
from ..runtime.text import list_names, printable
from ..runtime.warn import warn
from .programs import with_head
from .shared import networks as table
from .shared.archives import open_archive, read_members
from .shared.networks import Form, Network
from .shared.pickles import RefusedError, read_pickle
from .shared.torch_files import read_weights

Side = Mapping[str, Any]  # the arrays that are no critic's, target's or optimiser's


def read_torch(path: Path, options: Options) -> Sequence[Policy]:
    """Read the policy in a state dict, a checkpoint, or, with trust, a pickled module."""
    try:
        weights = read_weights(path)
    except RefusedError as error:
        if re.search(r"names (gym|gymnasium)\.spaces", str(error)):
            raise ValueError("a policy of Stable-Baselines3 without its class: save the model by model.save") from error
        if not options.trust:
            raise RefusedError(f"{error}; trust=True (--trust) opens it as code, if you trust its maker") from error
        weights = torch.load(path, map_location="cpu", weights_only=False)
        if acts(weights):
            return [with_head(weights, options)]
    return _from_weights(path, weights, options)


def read_safetensors(path: Path, options: Options) -> Sequence[Policy]:
    """Read the actor in a safetensors file. The file is not mapped, since overwriting it would end the process."""
    data = read_regular(path)
    if is_own(data):
        raise ValueError("a model, subsets or a checkpoint of sopr_fast, not a policy: move it to another folder")
    return _from_weights(path, load(data), options, is_ordered=False)


def read_pickled(path: Path, options: Options) -> Sequence[Policy]:
    """Read the actor in a pickle of arrays, such as those of D4RL, or in a file of torch of this suffix."""
    if zipfile.is_zipfile(path):
        return read_torch(path, options)
    try:
        return _from_weights(path, read_pickle(path), options)
    except RefusedError as error:
        raise RefusedError(f"{error}; open it in Python and pass what acts") from error


def read_npz(path: Path, options: Options) -> Sequence[Policy]:
    """Read an actor, or a stack of them; layers hidden_0, …, mean act by ReLU and the action goes through tanh."""
    with open_archive(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if not any(name.endswith(".weight") for name in names):
            check_is_policy(set(names) - {*KEYS["actions"]})
        members = read_members(archive, [f"{name}.npy" for name in names if table.is_read(name)])
    arrays: dict[str, Any] = dict.fromkeys(names)
    for name, content in members.items():
        arrays[name.removesuffix(".npy")] = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    layers = {key: value for key, value in arrays.items() if key.endswith((".weight", ".bias"))}
    if all(re.match(r"(hidden_\d+|mean|log_std)\.", key) for key in layers):
        options = replace(options, activation=options.activation or "relu", squash=options.squash or "tanh")
    counts = {len(value) if value.ndim > 1 + key.endswith(".weight") else 0 for key, value in layers.items()}
    if not any(counts):
        return _from_weights(path, arrays, options)
    if len(counts) > 1:
        shapes = ", ".join(f"{key} {value.shape}" for key, value in sorted(layers.items()))
        raise ValueError(f"its arrays are not layers of one number of stacked policies: {shapes}")
    stack = range(counts.pop())
    return _population(path, (arrays | {key: value[i] for key, value in layers.items()} for i in stack), options)


def _population(path: Path, contents: Iterable[Any], options: Options) -> list[Actor]:
    """Return the actors of several policies in one file."""
    named = ((replace(options, name=f"{options.name}-{i:03d}"), content) for i, content in enumerate(contents))
    return [actor for own, content in named for actor in _from_weights(path, content, own)]


def _from_weights(path: Path, content: Any, options: Options, *, is_ordered: bool = True) -> list[Actor]:
    """Return the actor in named arrays, nested or not, which may be in the order of their definition."""
    if isinstance(content, list) and table.are_alike(content):
        return _population(path, content, options)
    arrays = table.flatten(content)
    if any(table.is_part_of(key, table.RECURRENT) for key in arrays if not table.is_elsewhere(key)):
        raise ValueError(RECURRENT)
    words = {key: str(arrays[key]) for key in table.TEXTS if arrays.get(key) is not None}
    said: dict[str, Any] = {table.TEXTS[key][0]: table.TEXTS[key][1].get(word, word) for key, word in words.items()}
    Options(**said)  # checks them
    form = replace(table.form_of([*arrays], path.suffix), **said)
    network = table.find_network(arrays, options.take("actor"), options.take("layers"), is_ordered=is_ordered)
    layers = table.perceptron(arrays, network.layers)
    inside = network.prefix if table.is_elsewhere(network.prefix) else "\n"  # a critic that acts, such as that of DQN
    side = {key: value for key, value in arrays.items() if key.startswith(inside) or not table.is_elsewhere(key)}
    if "observation_preprocessor.running_mean" in side:  # of skrl; the other one is of what only its critic reads
        side = {key: value for key, value in side.items() if not key.startswith("state_preprocessor.")}
    width = len(layers[-1][0]) // (2 if (options.head or form.head) == "mean_log_std" else 1)
    spread, scale = _log_std(side, network), _bounds(side, options, width)
    is_continuous, widths = spread is not None or scale is not None, (layers[0][0].shape[1], len(layers[-1][0]))
    form = _completed(form, network, options, is_continuous, widths[1])
    standardisation, statistics = _standardisation(options.name, side, form)
    _check_unread(options.name, side, network, statistics, widths)
    if network.gap and not form.library and form.activation != "identity":
        order = ",".join(network.layers)
        raise ValueError(f"{network.gap}: if nothing else acts there, pass layers={order} (--layers …)")
    if form.warning and standardisation is None and (scale is None or "max_action" not in form.warning):
        warn(f"{printable(path)}: {form.warning}")
    acting: dict[str, Any] = {"activation": form.activation, "standardisation": standardisation}
    acting |= {"log_std_bounds": form.log_std_bounds, "log_std_tanh": form.log_std_tanh}
    acting["stochastic"] = options.stochastic
    if form.head in DISCRETE:
        kind = "values" if form.head == "values" else "logits"  # a softmax has no weights
        atoms = next((table.floats(side, key) for key in side if key.split(".")[-1] == "atoms"), None)
        actor = Actor(options.name, layers, squash=False, head=kind, atoms=atoms, **acting)
        if actor.action_dim == 1:
            raise ValueError(f"its last layer {network.layers[-1]!r} has one output, expected one for each action")
        return [actor]
    if form.head == "mean_log_std":
        if spread is not None:
            raise ValueError("its log standard deviations lie apart from its means: leave head='mean_log_std' out")
        layers, spread = _halves(layers, side)
    return [Actor(options.name, layers, squash=form.squash == "tanh", scale=scale, log_std=spread, **acting)]


def _ndim(value: Any) -> int:
    """Return the number of dimensions of an array, 0 of anything else."""
    return int(getattr(value, "ndim", 0))


def _completed(form: Form, network: Network, options: Options, is_continuous: bool, outputs: int) -> Form:
    """Return the form with what the options say of head, squashing and activation; refuse if nothing does."""
    last, role = network.layers[-1], network.role if network.role in HEADS and form.is_named else ""
    head = options.take("head") or form.head
    if head and role and (head in DISCRETE) != (role in DISCRETE):
        raise ValueError(f"its last layer {last!r} gives {role} by its name, but head={head!r}: load such files apart")
    if not (head := head or role) and (is_continuous or "tanh" in (form.squash, options.squash)):
        head = "action"
    if head and head not in DISCRETE and options.action_count is not None:
        what = f"its output is a continuous action, but action_count={options.action_count}"
        raise ValueError(f"{what}: pass head='values' or 'logits' (--head …) if it is not, else leave action_count out")
    squash = "none" if head in DISCRETE else form.squash or options.take("squash")
    activation = form.activation or options.take("activation") or ("identity" if len(network.layers) == 1 else "")
    missing = [key for key, value in (("activation", activation), ("head", head), ("squash", squash)) if not value]
    if head in DISCRETE[1:] and not (role or form.head) and options.action_count is None:
        missing.append("action_count")
    if missing:
        what = f"a file of {form.library}" if form.library else "a state dict"
        flags = " and ".join(f"{key}=… (--{key.replace('_', '-')} …)" for key in missing)
        hint = f"; heads are {', '.join(HEADS)}" if "head" in missing else ""
        if "action_count" in missing:
            hint += "; of a network that chooses several actions at once, pass a callable of states instead"
        seen = f"its last layer {last!r} has {outputs} outputs"
        raise ValueError(f"{what} does not say its {' and '.join(missing)}: pass {flags}{hint}; {seen}")
    return replace(form, head=head, squash=squash, activation=activation)


def _log_std(side: Side, network: Network) -> Any:
    """Return the layer or the array of log standard deviations, or None."""
    if network.log_std is not None:
        return table.layer(side, network.log_std) if "log" in network.log_std.lower() else None
    found = [match for key in side if (match := table.SPREAD.fullmatch(key)) and _ndim(side[key]) in (1, 2)]
    found = [match for match in found if f"{match[0].removesuffix('std')}mean" not in side]  # those of states
    if len(found) != 1 or found[0][1] in ("sigma", "_logstd"):  # the latter: of the action after tanh
        return None
    values = table.floats(side, found[0][0])
    if values.dim() == 2 and min(values.shape) > 1:
        raise ValueError(f"{found[0][0]} of state-dependent exploration needs the model's settings: save it as .zip")
    values = values.reshape(-1)
    return values.clamp_min(1e-6).log() if found[0][1] == "std" else values


def _bounds(side: Side, options: Options, width: int) -> Bounds | None:
    """Return the bounds to which squashed actions are scaled."""
    last = {key.rpartition(".")[2]: key for key in side}
    ends = [end for end in table.SIDES[:2] if _ndim(side.get(last.get(end, "")))]
    affine = {end: table.floats(side, last[end]).reshape(-1) for end in ends}
    half, middle = affine.get("action_scale", torch.ones(width)), affine.get("action_bias", torch.zeros(1))
    if not affine:
        most = side[last["max_action"]] if "max_action" in last else options.take("max_action")
        if most is None:
            return None
        half = torch.as_tensor(np.array(most, np.float32)).reshape(-1)
    half = half.expand(width) if len(half) == 1 else half
    return Bounds(middle - half, middle + half)


def _halves(layers: list[Layer], side: Side) -> tuple[list[Layer], Layer]:
    """Return the layers whose last one gives means, and the layer of log standard deviations next to them."""
    weight, bias = layers[-1]
    if len(weight) % 2:
        raise ValueError(f"its last layer has {len(weight)} outputs, which are no means and log standard deviations")
    means, deviations = zip(weight.chunk(2), bias.chunk(2), strict=True)
    affine = [float(side[key]) for end in table.AFFINE for key in side if key.endswith(end)]
    if len(affine) == 2:
        deviations = deviations[0] * affine[0], deviations[1] * affine[0] + affine[1]
    return [*layers[:-1], means], deviations


def _standardisation(name: str, side: Side, form: Form) -> tuple[Standardisation | None, str]:
    """Return the standardisation by statistics next to the weights, and what their names begin with."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in side.items():
        if (match := table.STATISTICS.fullmatch(key.lower())) and not isinstance(value, str | bool | None):
            if _ndim(value):
                table.floats(side, key)  # finite
            values = torch.as_tensor(np.asarray(value)).double().reshape(-1)
            found.setdefault(match[1], {})[match[2].replace("avg", "mean")] = values
    whole = {prefix: parts for prefix, parts in found.items() if "mean" in parts and parts.keys() & {"std", "var"}}
    if not whole:
        return None, "\n"
    if len(whole) > 1:
        raise ValueError(f"several statistics of observations: {list_names([*whole])}; save its own only, or as ONNX")
    [(prefix, parts)] = whole.items()
    epsilon, clip = (float(parts.get(key, default)) for key, default in (("eps", form.epsilon), ("clip", form.clip)))
    if not form.library:
        warn(
            f"policy {name!r}: states are standardised by {prefix.rstrip('._') or 'mean'!r} of its file and clipped to "
            f"{clip:g}; if the policy does otherwise, save it as ONNX instead"
        )
    std = parts["std"] + epsilon * bool(form.library) if "std" in parts else (parts["var"] + epsilon).sqrt()
    return Standardisation(parts["mean"], std, clip), prefix


def _check_unread(name: str, side: Side, network: Network, statistics: str, widths: tuple[int, int]) -> None:
    """Refuse arrays of the actor that are no layers of it; warn of averages, and of what is named or wide as scales."""
    arrays, scaling = [], []
    for key, value in side.items():
        owner, _, last = key.rpartition(".")
        is_statistic = table.STATISTICS.fullmatch(key.lower()) and key.lower().startswith(statistics)
        is_spread = table.SPREAD.fullmatch(key) or table.role_of(owner) == "log_std" or key.endswith(table.AFFINE)
        is_side = last in table.SIDES and (_ndim(value) or last == "max_action")
        is_read = owner in (*network.layers, network.log_std) or is_side or last in table.COUNTERS
        if is_read or is_statistic or is_spread:
            continue
        is_layer = re.fullmatch(r"(weight|bias)(_\w+)?", last) is not None  # of noisy layers too
        is_inside = key.startswith(network.prefix) or (not network.is_chosen and is_layer)
        parts = key.lower().split(".")
        is_average = not network.is_chosen and not {*parts}.isdisjoint(table.AVERAGES)
        is_named = is_average or (any(map(table.SCALING.fullmatch, parts)) and not isinstance(value, bool | str | None))
        is_wide = _ndim(value) and value.shape[-1] in widths and last not in ("weight", "bias")
        if _ndim(value) and is_inside and not table.SCALING.fullmatch(key.lower()):
            arrays.append(key)
        elif is_named or is_wide:
            scaling.append(key)
    if arrays:
        raise ValueError(
            f"its actor has more than linear layers: {list_names(arrays)}; export it to ONNX, or, if these do not act, "
            "name the layers that do with layers=… (--layers …)"
        )
    if scaling:
        warn(
            f"policy {name!r}: {list_names(scaling)} next to its layers are not read; if they act, or scale states or "
            "actions, save the whole policy as ONNX instead"
        )
