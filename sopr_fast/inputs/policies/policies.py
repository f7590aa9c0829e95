"""Policies from whatever people have: callables, modules, models, arrays, files."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...argument_types import PoliciesLike
from ...runtime.checks import integer
from ..logs import Transitions
from .array_policy import ArrayPolicy
from .callables import acts, adapt
from .policy import Policy
from .policy_files import ReadingOptions, load_files

_ORDER = "policies come first, then the log, then returns"


class Policies(dict[str, Policy]):
    """Policies by name, in the order given, which the user chose if they are `in_memory`; see `load_policies`."""

    def __init__(self, policies: Iterable[Policy], *, in_memory: bool = True) -> None:
        super().__init__((policy.name, policy) for policy in policies)
        self.in_memory = in_memory

    def take(self, names: Iterable[str]) -> Policies:
        """Return the policies of these names."""
        return Policies((self[name] for name in names), in_memory=self.in_memory)

    def for_log(self, states_count: int) -> list[Policy]:
        """Return the policies, or raise ValueError if an array of actions has no row for each state of the data."""
        for policy in self.values():
            if isinstance(policy, ArrayPolicy) and len(policy) != states_count:
                raise ValueError(
                    f"policy {policy.name!r} has actions for {len(policy)} states, the data has {states_count}; "
                    "log.source holds the row in the data of each row of a log"
                )
        return list(self.values())


def load_policies(
    source: PoliciesLike,
    *,
    trust: bool = False,
    action_count: int | None = None,
    module: nn.Module | Callable[[], nn.Module] | None = None,
    key: str | None = None,
    activation: str | None = None,
) -> Policies:
    """Return policies under one interface, by name and in the given order.

    A policy must answer each row on its own: it is asked for batches of any size, in any order. It may be:

    - A callable on a batch of states, an own float32 numpy array (N, dim_s). It returns actions (N, dim_a), an array or
      tensor of any float type on any device; or integer indices (N,) of discrete actions (set `action_count`); or
      a normal or categorical distribution of torch. With `action_count`, floats are probabilities.
    - A `torch.nn.Module`, called in eval mode, without gradients, with a tensor on its device and in its dtype.
    - An object with `predict`, such as a model of Stable-Baselines3 or d3rlpy, called with `deterministic=True` if it
      takes that argument. Of a tuple, the first item is the action. An attached `VecNormalize` standardises the states.
    - An array or tensor of actions with one row for each state of the log.
    - The path of a file or folder of policies, which act by the mean or the most likely action; see `docs/files.md`.
      They are named by their paths, relative to the folder that contains all of them, those of a stack with a number.

    Args:
        source: A dict from name to policy, a sequence of policies or of paths, a path, or `Policies`. In a sequence,
            policies are named by their position ("policy-000").
        trust: Run code in files where reading them needs it. Whoever can write the file can then do what you can do.
        action_count: Number of discrete actions, for policies that return indices or bare probabilities.
        module: Network of state dicts: a function without arguments, or a class, that makes a `torch.nn.Module` from
            states to actions, or such a module, of which each file gets a copy. Its weights must be exactly those of
            the file.
        key: Where a checkpoint holds these weights, such as "actor" or "model_state_dict.actor".
        activation: Activation between layers, for files of libraries that do not say it (rsl_rl).

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: A library that a file needs is not installed.
        OSError, MemoryError: A file cannot be read.
        TypeError: An item is not a policy, or a name is not a string.
        ValueError: There are no policies, or two have one name; or a file is damaged, not supported, or needs `trust`
            or an option.

    Warns:
        UserWarning: Something in a file was left unread.
    """
    if action_count is not None:
        action_count = integer(2)("action_count", action_count)
    options = ReadingOptions("", activation, module, key, trust)
    items = list(_items([source] if isinstance(source, str | PathLike) else source))
    paths = [Path(item) for _, item in items if isinstance(item, str | PathLike)]
    in_memory = isinstance(source, Mapping) or not items or len(paths) < len(items)
    if in_memory:
        result = [_adapt(item, replace(options, name=name)) for name, item in items]
    else:
        result = load_files(paths, options)
    if not (result or isinstance(source, Policies)):
        raise ValueError("no policies given")
    for name, count in Counter(policy.name for policy in result).items():
        if count > 1:
            raise ValueError(f"{count} policies are named {name!r}: name them in a dict, or rename their files")
    for policy in result:
        policy.set_action_count(action_count)
    return Policies(result, in_memory=getattr(source, "in_memory", in_memory))


def _items(policies: Any) -> Iterator[tuple[str, Any]]:
    """Yield policies with their names."""
    if isinstance(policies, Transitions) or (
        isinstance(policies, Mapping) and {"observations", "states"} & policies.keys()
    ):
        raise TypeError(f"a log, or an array named observations or states, stands where policies belong; {_ORDER}")
    if isinstance(policies, Mapping):
        for key, item in policies.items():
            if not isinstance(key, str):
                raise TypeError(f"names of policies must be strings, got {key!r}")
            yield str(key), item  # NumPy's strings as Python's
        return
    is_one = isinstance(policies, Policy | np.ndarray | Tensor) or acts(policies)
    if is_one or not isinstance(policies, Iterable) or isinstance(policies, Set):
        raise TypeError(
            f"policies must be a dict or sequence of policies, not {_kind(policies)}; put one in a list; {_ORDER}"
        )
    for position, item in enumerate(policies):
        yield item.name if isinstance(item, Policy) else f"policy-{position:03d}", item


def _adapt(item: Any, options: ReadingOptions) -> Policy:
    """Return the policy of an object, or the one at a path."""
    name = options.name
    if isinstance(item, str | PathLike):
        item, *others = load_files([Path(item)], options)
        if others:
            raise ValueError(f"policy {name!r}: {1 + len(others)} policies at this path: pass the path alone")
    if isinstance(item, Policy):
        renamed = copy.copy(item)
        renamed.name = name
        return renamed
    if isinstance(item, np.ndarray | Tensor):
        return ArrayPolicy(name, item)
    if acts(item):
        return adapt(name, item)
    expected = "a callable of states, a torch module with its weights, an object with predict, an array, or a path"
    raise TypeError(f"policy {name!r} is {_kind(item)}, expected {expected}")


def _kind(item: Any) -> str:
    is_class = isinstance(item, type)
    return f"the class {item.__name__}, not an object of it" if is_class else f"of type {type(item).__name__}"
