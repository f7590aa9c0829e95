"""Layers of the acting network among the arrays of a file, found by the table of patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ....runtime.pickles import Record
from ...logs.keys import list_names
from . import patterns

_DEPTH = 12
_ASK = "name the actor's key with actor=… (--actor …), or its layers in order with layers=… (--layers …)"


@dataclass(frozen=True)
class Network:
    """Names of the layers of an actor.

    Attributes:
        layers: The layers from states to output, in order.
        role: What the name of the last one says: a key of `HEADS` or "".
        prefix: What the names of all of them begin with, "" if nothing.
        is_chosen: Whether other layers beside it are known not to act: the user named it, or it is an average.
        log_std: Name of the layer of log standard deviations, or None.
        gap: The first place where an `nn.Sequential` does not have one module between two layers, "" if nowhere.
    """

    layers: list[str]
    role: str
    prefix: str
    is_chosen: bool = False
    log_std: str | None = None
    gap: str = ""


def flatten(content: Any) -> dict[str, Any]:
    """Return the values in nested mappings and sequences of them by dotted names, without states of optimisers.

    Slashes in names become dots. Of a tuple of state dicts, the first is that of the actor.
    """
    result: dict[str, Any] = {}

    def add(prefix: str, value: Any, depth: int) -> None:
        value = vars(value) if isinstance(value, Record) else value
        if isinstance(value, Mapping) and depth < _DEPTH:
            if "param_groups" not in value:
                for key, item in value.items():
                    add(f"{prefix}{key}.".replace("/", "."), item, depth + 1)
        elif prefix:
            result[prefix[:-1]] = value

    if isinstance(content, tuple | list) and content and isinstance(content[0], Mapping):
        content = content[0]
    add("", content, 0)
    return result


def find_network(
    arrays: Mapping[str, Any],
    actor: str | None = None,
    order: Sequence[str] | None = None,
    *,
    is_ordered: bool = True,
) -> Network:
    """Return the actor's network.

    Args:
        arrays: Arrays by dotted names; see `flatten`.
        actor: What the actor's names begin with, or None to find it by the table of patterns.
        order: The layers in order, or None to order them by number and by the table.
        is_ordered: Whether the arrays are in the order of their definition.

    Raises:
        ValueError: There is no network, several may be the actor, or the order of the layers is not clear.
    """
    linear = [
        key[: -len(".weight")] for key, value in arrays.items() if key.endswith(".weight") and np.ndim(value) == 2
    ]
    if order is not None:
        if missing := [name for name in order if name not in linear]:
            raise ValueError(f"no linear layer {missing[0]!r}, expected one of {list_names(linear)}")
        spread = _log_std([name for name in linear if name not in order])
        return Network(list(order), patterns.role_of(order[-1]), "\n", is_chosen=True, log_std=spread)
    if actor is not None:
        names = [name for name in linear if f"{name}.".startswith(f"{actor}.")]
        if not names:
            tops = list_names(sorted({name.partition(".")[0] for name in linear}))
            raise ValueError(f"no layers of an actor {actor!r} in it, whose layers are in {tops}")
        return replace(_ordered(*_descend(names, f"{actor}."), is_ordered), is_chosen=True)
    own = [name for name in linear if not patterns.is_part_of(name, patterns.NO_NETWORK)]
    names = [name for name in own if not patterns.is_part_of(name, patterns.CRITIC)] or own
    if not names:
        raise ValueError(f"expected linear layers such as '0.weight', 'l1.weight', found {list_names(sorted(arrays))}")
    return _ordered(*_descend(names), is_ordered)


def _descend(names: list[str], prefix: str = "") -> tuple[list[str], str]:
    """Return the layers of the container that acts, and its prefix."""
    while True:
        parts = dict.fromkeys(name[len(prefix) :].partition(".")[0] for name in names)
        inner = [part for part in parts if f"{prefix}{part}" not in names]
        averages = [part for part in inner if part in patterns.AVERAGES]
        if not averages and not (len(parts) == 1 and inner):
            return names, prefix
        prefix = f"{prefix}{(averages or inner)[0]}."
        names = [name for name in names if name.startswith(prefix)]


def _ordered(names: list[str], prefix: str, is_ordered: bool) -> Network:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"\d+$", "", name), []).append(name)
    roles = {stem: patterns.role_of(stem[len(prefix) :] if stem != prefix else "") for stem in groups}
    heads = [stem for stem in groups if roles[stem] not in ("", "body", "log_std", "output")]
    bodies = [stem for stem in groups if roles[stem] in ("", "body")]
    outputs = [stem for stem in groups if roles[stem] == "output"]
    unknown = [stem for stem in bodies if roles[stem] == ""]
    if (unknown and len(bodies) + len(outputs) + len(heads) > 1) or len(heads) > 1 or not bodies + outputs + heads:
        raise ValueError(f"which of its networks acts is not clear among {list_names(list(groups))}: {_ASK}")
    if not is_ordered and max(len(bodies), len(outputs)) > 1:
        raise ValueError(f"the file does not keep the order of its layers {list_names(sorted(names))}: {_ASK}")
    order = [*bodies, *outputs, *heads]
    numbered = {stem: sorted(groups[stem], key=lambda name: int(name[len(stem) :] or 0)) for stem in order}
    gap = next((text for stem in order if (text := _gap(stem, numbered[stem], stem == order[0]))), "")
    spread = _log_std([name for stem in groups if roles[stem] == "log_std" for name in groups[stem]])
    layers = [name for stem in order for name in numbered[stem]]
    role = roles[order[-1]]
    role = role or patterns.role_of(prefix) if role in ("", "body") else role
    is_average = any(part in patterns.AVERAGES for part in prefix.split("."))
    return Network(layers, role, prefix, is_chosen=is_average, log_std=spread, gap=gap)


def _gap(stem: str, names: list[str], is_first: bool) -> str:
    """Return what the numbers in an `nn.Sequential` say of modules that are not one activation between two layers."""
    if stem and not stem.endswith("."):
        return ""
    numbers = [int(name[len(stem) :]) for name in names]
    if numbers[0] > 0:
        return f"its first layer is {names[0]}, and a state dict does not say what is before it"
    for (before, first), (after, second) in pairwise(zip(numbers, names, strict=True)):
        if after - before != 2:
            return (
                f"layers {first} and {second} have {after - before - 1} modules between them, expected one activation"
            )
    return ""


def _log_std(names: Iterable[str]) -> str | None:
    found = [name for name in names if patterns.role_of(name) == "log_std"]
    return found[0] if len(found) == 1 else None
