"""Anything that can act, as policies: callables, modules, objects with `predict`, arrays, files."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any

from torch import nn

from .arrays import ArrayPolicy, is_array
from .called import Called, acts
from .files import load
from .policy import Policy


def as_policies(policies: Any, *, states_count: int | None = None, action_count: int | None = None) -> list[Policy]:
    """Policies under one interface, in the order given.

    `policies` is a dict from name to policy, a sequence, or the path of a file or folder. In a sequence a
    policy is named by its own `name` attribute, its file, or its position ("policy-000"). A policy must answer each
    row on its own, without memory of earlier calls: it is asked for batches of any size, in any order. Each may be

    - a callable on a batch of states. It receives a float32 numpy array (N, dim_s) of its own and returns
      actions (N, dim_a), as an array or tensor of any float type and device; or integer indices (N,) of
      discrete actions (`action_count` says of how many); or a distribution: an object with `mean` and
      `stddev`, `std` or `scale` (torch's distributions, `Gaussian(mean, std)`), a torch categorical one or
      `Probabilities(p)`. With `action_count`, plain floats are probabilities;
    - a `torch.nn.Module`. It receives a torch tensor instead, on its device and in its dtype, and is in eval
      mode, without gradients, while it acts;
    - an object with `predict`, called as a callable is, with `deterministic=True` if it takes that or any
      keyword; of a tuple the first is the action, as in Stable-Baselines3;
    - an array or tensor of actions, `Gaussian` or `Probabilities`, a row for each of the `states_count`
      states;
    - the path of a file of policies or a folder of them (see `load`, which has options for files that do not say
      all); a file of several policies adds them all, under the name with "-000", "-001", …

    Raises:
        FileNotFoundError, ImportError: no such file, or the extra that reads it is not installed.
        TypeError, ValueError: what is no policy, no policies at all, names that are not strings or not
            distinct, a file that cannot be read, an array whose rows are not the states'.
    """
    result: list[Policy] = []
    origins: dict[str, str] = {}
    for origin, name, item in _items(policies):
        position = len(result)
        for policy in _adapt(origin, name, item, f"policy-{position:03d}", states_count, action_count):
            if policy.name in origins:
                raise ValueError(
                    f"{origins[policy.name]} and {origin} are both named {policy.name!r}; name them in a dict"
                )
            origins[policy.name] = origin
            result.append(policy)
    if not result:
        raise ValueError("no policies given")
    return result


def _items(policies: Any) -> Iterator[tuple[str, str | None, Any]]:
    """(where, name or None, policy) of every item."""
    if isinstance(policies, Mapping):
        for key, item in policies.items():
            if not isinstance(key, str):
                raise TypeError(f"names of policies must be strings, got {key!r}")
            yield f"policies[{key!r}]", key, item
        return
    if isinstance(policies, str | PathLike):
        policies = [policies]
    single = isinstance(policies, Policy) or is_array(policies) or acts(policies)
    if (single and not isinstance(policies, nn.ModuleList)) or not isinstance(policies, Iterable):
        raise TypeError(f"policies must be a dict or sequence of policies, got {_kind(policies)}; put one in a list")
    for position, item in enumerate(policies):
        yield f"policies[{position}]", None, item


def _adapt(
    origin: str, name: str | None, item: Any, default: str, states_count: int | None, action_count: int | None
) -> list[Policy]:
    if isinstance(item, str | PathLike):
        found = load(item, states_count=states_count, action_count=action_count)
        if name is None:
            return found
        if len(found) == 1:
            return [_renamed(found[0], name)]
        return [_renamed(policy, f"{name}-{i:03d}") for i, policy in enumerate(found)]
    if isinstance(item, ArrayPolicy):
        count = action_count if item.action_count is None else item.action_count
        item = ArrayPolicy(item.name, item.values, states_count=states_count, action_count=count)
    if isinstance(item, Called) and item.action_count is None and action_count is not None:
        item = copy.copy(item)
        item.action_count = action_count
    if isinstance(item, Policy):
        return [item if name in (None, item.name) else _renamed(item, name)]
    if name is None:
        own = getattr(item, "name", None)
        name = own if isinstance(own, str) and own else default
    if is_array(item):
        return [ArrayPolicy(name, item, states_count=states_count, action_count=action_count)]
    if acts(item):
        return [Called(name, item, action_count)]
    raise TypeError(
        f"{origin} is {_kind(item)}, expected a callable, a torch module, an object with predict, "
        "an array of actions, Gaussian or Probabilities of arrays, or a path"
    )


def _kind(item: Any) -> str:
    return (
        f"the class {item.__name__}, not an object of it"
        if isinstance(item, type)
        else f"of type {type(item).__name__}"
    )


def _renamed(policy: Policy, name: str) -> Policy:
    renamed = copy.copy(policy)
    renamed.name, renamed.given = name, policy if policy.given is None else policy.given
    return renamed
