"""Actors from the arrays of any file of weights, by the table of names and the options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....runtime.text import printable
from ....runtime.warn import warn
from ...logs.keys import list_names
from ..actor import ACTIVATIONS, Actor, Layer, Standardisation
from ..callables import RECURRENT
from ..options import DISCRETE, HEADS, Options
from ..output import Bounds
from . import names as table
from .layers import Network, find_network, flatten, floats, layer, perceptron

Side = Mapping[str, Any]  # the arrays that are no critic's, target's or optimiser's


def from_weights(path: Path, content: Any, options: Options, *, is_ordered: bool = True) -> list[Actor]:
    """Return the actor in a state dict, a checkpoint that contains one, or other named arrays.

    Args:
        path: The file.
        content: What it holds: mappings from names to arrays, numbers, text and such mappings.
        options: What the file does not say.
        is_ordered: Whether the arrays are in the order of their definition.

    Raises:
        ValueError: There is no actor of linear layers, or what it returns is not clear; the message names the option.

    Warns:
        UserWarning: What scales its states or actions may be missing.
    """
    arrays = flatten(content)
    if any(table.is_part_of(key, table.RECURRENT) for key in arrays if not _is_elsewhere(key)):
        raise ValueError(RECURRENT)
    form = table.form_of([*arrays], path.suffix)
    order = options.take("layers")
    order = order.split(",") if isinstance(order, str) else order
    network = find_network(arrays, options.take("actor"), order, is_ordered=is_ordered)
    layers = perceptron(arrays, network.layers)
    inside = network.prefix if _is_elsewhere(network.prefix) else "\n"  # a critic that acts, such as that of DQN
    side = {key: value for key, value in arrays.items() if key.startswith(inside) or not _is_elsewhere(key)}
    spread, scale = _log_std(side, network), _bounds(side, options, len(layers[-1][0]))
    is_continuous = spread is not None or scale is not None
    head, squash, activation = _meaning(arrays, network, form, options, is_continuous)
    standardisation, statistics = _standardisation(options.name, side, form)
    _check_unread(options.name, side, network, statistics)
    if network.gap and not form.library and activation != "identity":
        raise ValueError(
            f"{network.gap}: if nothing else acts there, pass layers={','.join(network.layers)} (--layers …)"
        )
    if form.warning and standardisation is None:
        warn(f"{printable(path)}: {form.warning}")
    if head == "mean_log_std":
        if spread is not None:
            raise ValueError("its log standard deviations lie apart from its means: leave head='mean_log_std' out")
        layers, spread = _halves(layers, side)
    if head in DISCRETE:
        spread = scale = None
    is_layer = isinstance(spread, tuple)
    atoms = [floats(side, key) for key in side if key.split(".")[-1] == "atoms" and head == "values"]
    if options.stochastic and spread is None and head not in DISCRETE:
        why = "'sigma' may be a logarithm or not" if any("sigma" in key for key in side) else "no log_std in it"
        raise ValueError(f"its standard deviations are not known ({why}): load it without stochastic")
    actor = Actor(
        options.name,
        layers,
        activation=activation,
        squash=squash == "tanh",
        scale=scale,
        log_std=spread,
        log_std_bounds=form.log_std_bounds if is_layer else (-math.inf, math.inf),
        log_std_tanh=form.log_std_tanh and is_layer,
        stochastic=options.stochastic,
        standardisation=standardisation,
        head="action" if head not in DISCRETE else "values" if head == "values" else "logits",
        atoms=atoms[0] if atoms else None,
    )
    if head in DISCRETE and actor.action_dim == 1:
        raise ValueError(f"its last layer {network.layers[-1]!r} has one output, expected one for each action")
    return [actor]


def _ndim(value: Any) -> int:
    """Return the number of dimensions of an array, 0 of anything else."""
    return int(getattr(value, "ndim", 0))


def _is_elsewhere(key: str) -> bool:
    """Return whether an array belongs to a critic, a target or an optimiser."""
    return table.is_part_of(key, table.NO_NETWORK) or table.is_part_of(key, table.CRITIC)


def _meaning(
    arrays: Mapping[str, Any], network: Network, form: table.Form, options: Options, is_continuous: bool
) -> tuple[str, str, str]:
    """Return head, squashing and activation, as the file says or else the options; refuse if neither does."""
    said = {"activation": form.activation, "squash": form.squash} | _texts(arrays)
    last, role = network.layers[-1], network.role if network.role in HEADS else ""
    head, squash = options.take("head") or form.head, said["squash"]
    if head and role and (head in DISCRETE) != (role in DISCRETE):
        raise ValueError(f"its last layer {last!r} gives {role} by its name, but head={head!r}: load such files apart")
    if not (head := head or role) and (is_continuous or (squash or options.squash) == "tanh"):
        head = "action"
    if head in DISCRETE:
        squash = "none"
    elif head and options.action_count is not None:
        raise ValueError(
            f"its output is a continuous action, but action_count={options.action_count}: pass head='values', 'logits' "
            "or 'probabilities' (--head …) if it is not, else leave action_count out"
        )
    else:
        squash = squash or options.take("squash") or ""
    activation = said["activation"] or options.take("activation") or ("identity" if len(network.layers) == 1 else "")
    missing = [key for key, value in (("activation", activation), ("head", head), ("squash", squash)) if not value]
    if head in DISCRETE[1:] and not (role or form.head) and options.action_count is None:
        missing.append("action_count")
    if missing:
        what = f"a file of {form.library}" if form.library else "a state dict"
        flags = " and ".join(f"{key}=… (--{key.replace('_', '-')} …)" for key in missing)
        hint = f"; heads are {', '.join(HEADS)}" if "head" in missing else ""
        if "action_count" in missing:
            hint += "; of a network that chooses several actions at once, pass a callable of states instead"
        seen = f"its last layer {last!r} has {len(arrays[f'{last}.weight'])} outputs"
        raise ValueError(f"{what} does not say its {' and '.join(missing)}: pass {flags}{hint}; {seen}")
    return head, squash, activation


def _texts(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return activation and squashing as words of the file say."""
    said = {}
    for key, (option, names) in table.TEXTS.items():
        if (value := arrays.get(key)) is not None:
            text = value.decode("latin1") if isinstance(value, bytes) else str(value)
            said[option] = names.get(text, text)
            expected = ACTIVATIONS if option == "activation" else ("tanh", "none")
            if said[option] not in expected:
                raise ValueError(f"its {key} is {text!r}, expected one of {', '.join(names or expected)}")
    return said


def _log_std(side: Side, network: Network) -> Any:
    """Return the layer or the array of log standard deviations, or None."""
    if network.log_std is not None:
        return layer(side, network.log_std) if "log" in network.log_std.lower() else None
    found = [key for key in side if table.SPREAD.fullmatch(key) and _ndim(side[key]) in (1, 2)]
    found = [
        key for key in found if not key.endswith("std") or f"{key.removesuffix('std')}mean" not in side
    ]  # of states
    kind = table.SPREAD.fullmatch(found[0])[1] if len(found) == 1 else "sigma"  # type: ignore[index]
    if kind == "sigma":
        return None
    if _ndim(side[found[0]]) == 2 and min(np.shape(side[found[0]])) > 1:
        raise ValueError(
            f"{found[0]} of state-dependent exploration needs the settings of the model: save the model as .zip"
        )
    values = floats(side, found[0]).reshape(-1)
    return values.clamp_min(1e-6).log() if kind == "std" else values


def _bounds(side: Side, options: Options, width: int) -> Bounds | None:
    """Return the bounds to which squashed actions are scaled."""
    last = {key.rpartition(".")[2]: key for key in side}
    if {"action_scale", "action_bias"} <= last.keys():
        half, middle = (floats(side, last[key]).reshape(-1) for key in ("action_scale", "action_bias"))
        return Bounds(middle - half, middle + half)
    most = side[last["max_action"]] if "max_action" in last else options.take("max_action")
    if most is None:
        return None
    most = torch.as_tensor(np.array(most, np.float32)).reshape(-1)
    most = most.expand(width).contiguous() if len(most) == 1 else most
    return Bounds(-most, most)


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


def _standardisation(name: str, side: Side, form: table.Form) -> tuple[Standardisation | None, str]:
    """Return the standardisation by statistics next to the weights, and what their names begin with."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in side.items():
        if (match := table.STATISTICS.fullmatch(key.lower())) and not isinstance(value, str | bool | None):
            if _ndim(value):
                floats(side, key)  # finite
            values = torch.as_tensor(np.asarray(value)).double().reshape(-1)
            found.setdefault(match[1], {})[match[2].replace("avg", "mean")] = values
    whole = {prefix: parts for prefix, parts in found.items() if "mean" in parts and parts.keys() & {"std", "var"}}
    if not whole:
        return None, "\n"
    if len(whole) > 1:
        raise ValueError(f"several statistics of observations: {list_names(list(whole))}")
    [(prefix, parts)] = whole.items()
    epsilon, clip = (float(parts.get(key, default)) for key, default in (("eps", form.epsilon), ("clip", form.clip)))
    if not form.library:
        warn(
            f"policy {name!r}: states are standardised by {prefix.rstrip('._') or 'mean'!r} of its file and clipped to "
            f"{clip:g}; if the policy does otherwise, save it as ONNX instead"
        )
    std = parts["std"] + epsilon * bool(form.library) if "std" in parts else (parts["var"] + epsilon).sqrt()
    return Standardisation(parts["mean"], std, clip), prefix


def _check_unread(name: str, side: Side, network: Network, statistics: str) -> None:
    """Refuse arrays of the actor that are no layers of it, and warn of others that may scale states or actions."""
    arrays, scaling = [], []
    for key, value in side.items():
        owner, _, last = key.rpartition(".")
        is_statistic = table.STATISTICS.fullmatch(key.lower()) and key.lower().startswith(statistics)
        is_spread = table.SPREAD.fullmatch(key) or table.role_of(owner) == "log_std" or key.endswith(table.AFFINE)
        is_read = owner in (*network.layers, network.log_std) or last in (*table.SIDES, *table.COUNTERS)
        if is_read or is_statistic or is_spread:
            continue
        is_inside = key.startswith(network.prefix) or (not network.is_chosen and key.endswith((".weight", ".bias")))
        if _ndim(value) and is_inside and not table.SCALING.fullmatch(key.lower()):
            arrays.append(key)
        elif any(map(table.SCALING.fullmatch, key.lower().split("."))) and not isinstance(value, bool | str | None):
            scaling.append(key)
    if arrays:
        raise ValueError(
            f"its actor has more than linear layers: {list_names(arrays)}; export it to ONNX, or, if these do not act, "
            "name the layers that do with layers=… (--layers …)"
        )
    if scaling:
        warn(
            f"policy {name!r}: {list_names(scaling)} next to its layers are not read; if they scale states or actions, "
            "save the whole policy as ONNX instead"
        )
