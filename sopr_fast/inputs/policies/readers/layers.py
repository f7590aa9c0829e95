"""Layers of the acting network among the arrays of a file, found by the table of names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ....runtime.pickles import Record
from ....runtime.text import list_names
from ..actor import Layer
from . import names as table

Arrays = Mapping[str, Any]  # tensors, or values that numpy.asarray accepts
_MOST_ARRAYS, _LONGEST_NAME = 10_000, 400  # a file that repeats long names in long ones would fill the memory
_ASK = "name the actor's key with actor=… (--actor …), or its layers in order with layers=… (--layers …)"


@dataclass(frozen=True)
class Network:
    """Names of the layers of an actor, in order."""

    layers: list[str]
    role: str  # what the name of the last one says: a key of `HEADS` or ""
    prefix: str  # what the names of all of them begin with
    is_chosen: bool = False  # other layers next to it do not act: the user named it, or it is an average
    log_std: str | None = None  # name of the layer of log standard deviations
    gap: str = ""  # the first place where an `nn.Sequential` does not have one module between two layers


def flatten(content: Any) -> dict[str, Any]:
    """Return the values in nested mappings, modules and statistics by dotted names, without states of optimisers.

    Slashes in names become dots. The first of a tuple of state dicts is that of the actor; statistics may follow.
    """
    result: dict[str, Any] = {}

    def fields(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return value.state_dict()
        inner = getattr(value, "__dict__", {})
        return inner if isinstance(value, Record) or {"mean", "var"} <= inner.keys() else value

    def add(prefix: str, value: Any) -> None:
        value = fields(value)
        if isinstance(value, Mapping):
            if "param_groups" not in value:
                for key, item in value.items():
                    add(f"{prefix}{key}.".replace("/", "."), item)
        elif prefix:
            result[prefix[:-1]] = value
        if len(prefix) > _LONGEST_NAME or len(result) > _MOST_ARRAYS:
            raise ValueError(f"more than {_MOST_ARRAYS:,} values, or one whose name is longer than {_LONGEST_NAME}")

    if isinstance(content, tuple | list) and content and isinstance(first := fields(content[0]), Mapping):
        for item in map(fields, content[1:]):
            if isinstance(item, Mapping) and "mean" in item:
                add("obs_rms.", item)
        content = first
    add("", content)
    return result


def find_network(
    arrays: Arrays, actor: str | None = None, order: Sequence[str] | None = None, *, is_ordered: bool = True
) -> Network:
    """Return the actor's network among arrays by dotted names, or raise ValueError if it is not clear.

    Its names begin with `actor`, or the table of names finds it. Its layers have the given `order`, or that of their
    numbers and of the table; layers without numbers are in the order of the arrays, if these are ordered.
    """
    linear = [
        key.removesuffix(".weight")
        for key, value in arrays.items()
        if key.endswith(".weight") and getattr(value, "ndim", 0) == 2
    ]
    if order is not None:
        if missing := [name for name in order if name not in linear]:
            raise ValueError(f"no linear layer {missing[0]!r}, expected one of {list_names(linear)}")
        spread = _only_log_std(name for name in linear if name not in order)
        return Network(list(order), table.role_of(order[-1]), "\n", is_chosen=True, log_std=spread)
    if actor is not None:
        names = [name for name in linear if f"{name}.".startswith(f"{actor}.")]
        if not names:
            tops = list_names(sorted({name.partition(".")[0] for name in linear}))
            raise ValueError(f"no layers of an actor {actor!r} in it, whose layers are in {tops}")
        return replace(_ordered(*_descend(names, f"{actor}."), is_ordered), is_chosen=True)
    own = [name for name in linear if not table.is_part_of(name, table.NO_NETWORK)]
    names = [name for name in own if not table.is_part_of(name, table.CRITIC)]
    if all(table.role_of(name) == "body" for name in names):  # fc1, fc2, q: the layer next to them acts
        owners = {name.rpartition(".")[0] for name in names}
        names = [name for name in own if name in names or not names or name.rpartition(".")[0] in owners]
    if not names:
        seen = list_names(sorted(arrays))
        raise ValueError(f"expected linear layers such as '0.weight', found {seen}; pass a callable of states instead")
    return _ordered(*_descend(names), is_ordered)


def _descend(names: list[str], prefix: str = "") -> tuple[list[str], str]:
    """Return the layers of the container that acts, and its prefix."""
    while True:
        parts = dict.fromkeys(name[len(prefix) :].partition(".")[0] for name in names)
        inner = [part for part in parts if f"{prefix}{part}" not in names]
        averages = [part for part in inner if part in table.AVERAGES]
        if not averages and not (len(parts) == 1 and inner):
            return names, prefix
        prefix = f"{prefix}{(averages or inner)[0]}."
        names = [name for name in names if name.startswith(prefix)]


def _ordered(names: list[str], prefix: str, is_ordered: bool) -> Network:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_place(name)[0], []).append(name)
    roles = {stem: table.role_of(stem[len(prefix) :] if stem != prefix else "") for stem in groups}
    bodies, outputs = ([stem for stem in groups if roles[stem] in kinds] for kinds in (("", "body"), ("output",)))
    heads = [stem for stem in groups if roles[stem] not in ("", "body", "output", "log_std")]
    order = [*bodies, *outputs, *heads]
    alike = {re.sub(r"\d+", "#", stem) for stem in bodies}
    is_alone = len(bodies) == 1 and all(len(groups[stem]) == 1 for stem in order[1:])
    is_unknown = any(roles[stem] == "" for stem in bodies) and not is_alone
    if is_unknown or len(alike) < len(bodies) or len(heads) > 1 or not order:
        raise ValueError(f"which of its networks acts is not clear among {list_names(list(groups))}: {_ASK}")
    if not is_ordered and max(len(bodies), len(outputs)) > 1:
        raise ValueError(f"the file does not keep the order of its layers {list_names(sorted(names))}: {_ASK}")
    layers = [name for stem in order for name in sorted(groups[stem], key=lambda name: _place(name)[1])]
    role = roles[order[-1]]
    return Network(
        layers,
        role if role not in ("", "body") else table.role_of(prefix),
        prefix,
        is_chosen=any(part in table.AVERAGES for part in prefix.split(".")),
        log_std=_only_log_std(name for stem in groups if roles[stem] == "log_std" for name in groups[stem]),
        gap=_gap(layers),
    )


def _place(name: str) -> tuple[str, int, bool]:
    """Return a layer's stem, its number, and whether it is in an `nn.Sequential`: ("net.", 2, True) of "net.2"."""
    if block := re.fullmatch(r"(.*\.|)(\d+)\.(?:0|fc|lin|linear|layer|dense|_model\.0)", name):
        return block[1], int(block[2]), False  # a block has its activation in itself
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), name != stem and stem[-1:] in ("", ".")


def _gap(names: list[str]) -> str:
    """Return where there may be other modules than one activation between two layers."""
    before, previous = "", ("\n", 0, False)
    stems = [_place(name)[0] for name in names]
    for name, place in zip(names, map(_place, names), strict=True):
        stem, number, is_in_sequence = place
        if previous[0] not in ("\n", stem) and stems.count(stem) > 1:
            return f"{before} and {name} are of two networks, and a state dict does not say what is between them"
        if is_in_sequence and previous[0] != stem and number > 0:
            return f"its first layer is {name}, and a state dict does not say what is before it"
        if is_in_sequence and previous[0] == stem and (between := number - previous[1] - 1) != 1:
            return f"layers {before} and {name} have {between} modules between them, expected one activation"
        before, previous = name, place
    return ""


def _only_log_std(names: Iterable[str]) -> str | None:
    found = [name for name in names if table.role_of(name) == "log_std"]
    return found[0] if len(found) == 1 else None


def floats(arrays: Arrays, key: str) -> Tensor:
    """Return array `key` in float32, or raise ValueError if it is not of finite floats."""
    values = arrays[key]
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        values = torch.from_numpy(array.astype(np.float32)) if array.dtype.kind == "f" else array
    if not isinstance(values, Tensor) or not values.is_floating_point() or not values.isfinite().all():
        raise ValueError(f"{key} must be finite floats, got dtype {values.dtype}")
    return values.detach().float().contiguous()


def layer(arrays: Arrays, name: str) -> Layer:
    """Return weight (out, in) and bias (out,) of a layer, zeros without one, or raise ValueError if they do not fit."""
    weight_key, bias_key = f"{name}.weight", f"{name}.bias"
    weight = floats(arrays, weight_key)
    bias = floats(arrays, bias_key) if bias_key in arrays else weight.new_zeros(len(weight))
    if weight.numel() == 0 or weight.dim() != 2 or bias.shape != weight.shape[:1]:
        shapes = f"{weight_key} {tuple(weight.shape)} and {bias_key} {tuple(bias.shape)}"
        raise ValueError(f"{shapes} are not a layer, expected (out, in) and (out,)")
    return weight, bias


def perceptron(arrays: Arrays, names: Iterable[str]) -> list[Layer]:
    """Return the layers, each of which reads the output of the one before, or raise ValueError if widths do not fit."""
    result: list[Layer] = []
    for name in names:
        result.append(layer(arrays, name))
        reads = result[-1][0].shape[1]
        if len(result) > 1 and reads != len(result[-2][0]):
            raise ValueError(f"{name}.weight reads {reads} values, the layer before gives {len(result[-2][0])}")
    return result
