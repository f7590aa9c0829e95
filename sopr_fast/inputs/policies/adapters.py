"""Conversion of callables, modules, models, arrays and files to policies."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from ...runtime.checks import check_integer
from ..accepted import PoliciesLike
from ..logs.tables import is_frame
from .arrays import ArrayPolicy, is_array
from .callables import Called, acts, adapt
from .files import common_folder, load_files
from .policy import Policy
from .readers.actions import of_frame
from .readers.options import Options


class Policies(dict[str, Policy]):
    """Policies by name, in the order given; see `load`.

    Attributes:
        in_memory: Whether the user chose their order. Returns and groups of policies from files need names.
    """

    def __init__(self, policies: Iterable[Policy], *, in_memory: bool = True) -> None:
        super().__init__((policy.name, policy) for policy in policies)
        self.in_memory = in_memory

    def take(self, names: Iterable[str]) -> Policies:
        """Return the policies of these names."""
        return Policies((self[name] for name in names), in_memory=self.in_memory)

    def for_log(self, states_count: int) -> list[Policy]:
        """Return the policies, after a check that arrays of actions have a row for each state of the log.

        Raises:
            ValueError: An array has another number of rows.
        """
        for policy in self.values():
            if isinstance(policy, ArrayPolicy):
                policy.check_rows(states_count)
        return list(self.values())


def load(
    source: PoliciesLike,
    *,
    trust: bool = False,
    stochastic: bool = False,
    skip: bool = False,
    action_count: int | None = None,
    activation: str | None = None,
    squash: str | None = None,
    head: str | None = None,
    actor: str | None = None,
    layers: str | Sequence[str] | None = None,
    max_action: float | None = None,
) -> Policies:
    """Return policies under one interface, by name and in the given order.

    `source` is a dict from name to policy, a sequence of policies, the path of a file or folder, or `Policies`. In a
    sequence, a policy is named by its `name` attribute, its file, or its position ("policy-000"). A policy must answer
    each row on its own, without memory of earlier calls: it is asked for batches of any size, in any order. It may be:

    - A callable on a batch of states. It receives its own float32 numpy array (N, dim_s) and returns actions (N, dim_a)
      as an array or tensor of any float type on any device; or integer indices (N,) of discrete actions (set
      `action_count`); or a distribution: an object with `mean` and `stddev`, `std` or `scale` (a torch distribution,
      `Gaussian(mean, std)`), a categorical torch distribution, or `Probabilities(p)`. With `action_count`, floats are
      probabilities.
    - A `torch.nn.Module`. It receives a torch tensor on its device and in its dtype, and is in eval mode, without
      gradients, while it acts.
    - An object with `predict`, called like a callable, with `deterministic=True` if it takes that argument or any
      keyword. If it returns a tuple, the first item is the action, as in Stable-Baselines3.
    - A model of Stable-Baselines3 or d3rlpy. It acts by its `predict`, that of the former with `deterministic=True` and
      on states that the attached `VecNormalize` has standardised.
    - An array, tensor or data frame of actions, `Gaussian` or `Probabilities`, with one row for each state of the log.
    - The path of a file or folder of policies, see `docs/files.md`. Paths in a sequence are named relative to the
      folder that contains all of them. A file of several policies under one key adds them all, as "key-000",
      "key-001", …

    Args:
        source: What holds the policies.
        trust: Run code in files where reading them needs it. Whoever can write the file can then do what you can do.
        stochastic: Act by the distributions in files instead of their means, or their most likely discrete actions.
        skip: Skip files that cannot be read, with a warning for each, instead of raising.
        action_count: Number of discrete actions, for policies that return indices or bare probabilities.
        activation: Activation between layers. This and the options below are for files that do not say it.
        squash: "tanh" or "none" after the last layer.
        head: Meaning of the output: "action"; "mean"; "mean_log_std", the mean and then the log standard deviation;
            or of discrete actions "values", "logits" or "probabilities".
        actor: What the names of the actor's layers begin with in a state dict, such as "model.pi".
        layers: Names of the actor's layers in order, a sequence or one text with commas.
        max_action: Bound of the actions after tanh, which are scaled to it.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: A library that a file needs is not installed.
        OSError, MemoryError: A file cannot be read.
        TypeError: An item is not a policy, or a name is not a string.
        ValueError: There are no policies, or two have one name; or a file is damaged, not supported, needs `trust` or
            an option; or no file needs an option.

    Warns:
        UserWarning: A file was skipped, or something in it was left unread.
    """
    if action_count is not None:
        action_count = check_integer("action_count", action_count, 2)
    options = Options(
        action_count=action_count,
        stochastic=stochastic,
        trust=trust,
        activation=activation,
        squash=squash,
        head=head,
        actor=actor,
        layers=layers,
        max_action=max_action,
    )
    options.check()
    if isinstance(source, Policies):
        options.check_used()
        return Policies((_counting(each, action_count) for each in source.values()), in_memory=source.in_memory)
    if isinstance(source, str | PathLike):
        source = [source]
    result: list[Policy] = []
    in_memory = True
    items = source if isinstance(source, Sequence) else []
    paths = [Path(item) for item in items if isinstance(item, str | PathLike)]
    if paths and len(paths) == len(items):
        result, in_memory = [*load_files(paths, options, skip=skip).values()], False
    else:
        origins: dict[str, str] = {}
        for origin, name, item, folder in _items(source):
            in_memory &= name is not None or not isinstance(item, str | PathLike)
            for policy in _adapt(origin, name, item, folder, f"policy-{len(result):03d}", options, skip):
                if policy.name in origins:
                    raise ValueError(
                        f"{origins[policy.name]} and {origin} are both named {policy.name!r}; name them in a dict"
                    )
                origins[policy.name] = origin
                result.append(policy)
    if not result:
        raise ValueError("no policies given")
    options.check_used()
    return Policies(result, in_memory=in_memory)


def _items(policies: Any) -> Iterator[tuple[str, str | None, Any, Path | None]]:
    """Yield origin, name or None, item, and the folder to which a path's name is relative."""
    if isinstance(policies, Mapping):
        for key, item in policies.items():
            if not isinstance(key, str):
                raise TypeError(f"names of policies must be strings, got {key!r}")
            yield f"policies[{str(key)!r}]", str(key), item, None  # NumPy's strings as Python's
        return
    if hasattr(policies, "groupby"):
        raise TypeError(
            "policies are a data frame: pass a dict from name to its array of actions, one row for each state, such as "
            "{name: rows[['a0', 'a1']].to_numpy() for name, rows in frame.groupby('policy')}"
        )
    is_one = isinstance(policies, Policy) or is_array(policies) or acts(policies)
    if (
        (is_one and not isinstance(policies, nn.ModuleList))
        or not isinstance(policies, Iterable)
        or isinstance(policies, Set)
    ):
        raise TypeError(f"policies must be a dict or sequence of policies, got {_kind(policies)}; put one in a list")
    items = list(policies)
    paths = [Path(item) for item in items if isinstance(item, str | PathLike)]
    folder = common_folder(paths) if paths else None
    for position, item in enumerate(items):
        yield f"policies[{position}]", None, item, folder


def _adapt(
    origin: str,
    name: str | None,
    item: Any,
    folder: Path | None,
    default: str,
    options: Options,
    skip: bool,
) -> list[Policy]:
    action_count = options.action_count
    if isinstance(item, str | PathLike):
        loaded = list(load_files([Path(item)], options, skip=skip, relative_to=folder).values())
        if name is None:
            return loaded
        if len(loaded) == 1:
            return [_renamed(loaded[0], name)]
        return [_renamed(policy, f"{name}-{i:03d}") for i, policy in enumerate(loaded)]
    if isinstance(item, Policy):
        item = _counting(item, action_count)
        return [item if name in (None, item.name) else _renamed(item, name)]
    if name is None:
        own = getattr(item, "name", None)
        name = own if isinstance(own, str) and own else default
    if hasattr(item, "to_frame"):  # a series
        item = item.to_frame("action")
    if is_frame(item):
        item = of_frame(item, f"policy {name!r}")
    elif hasattr(item, "to_numpy"):
        item = item.to_numpy()
    if is_array(item):
        return [ArrayPolicy(name, item, action_count=action_count)]
    if acts(item):
        return [adapt(name, item, action_count)]
    hint = "; pass known returns as returns=" if isinstance(item, int | float) else ""
    if methods := [key for key in ("act", "get_action", "select_action") if callable(getattr(item, key, None))]:
        hint = f"; pass a callable of states that calls its method {methods[0]}"
    raise TypeError(
        f"{origin} is {_kind(item)}, expected a callable, a torch module, an object with predict, "
        f"an array of actions, Gaussian or Probabilities of arrays, or a path{hint}"
    )


def _counting(policy: Policy, action_count: int | None) -> Policy:
    """Return the policy with a number of discrete actions, if it needs one and has none."""
    if isinstance(policy, ArrayPolicy | Called) and policy.action_count is None and action_count is not None:
        policy = copy.copy(policy)
        policy.action_count = action_count
    return policy


def _kind(item: Any) -> str:
    if isinstance(item, type):
        return f"the class {item.__name__}, not an object of it"
    return f"of type {type(item).__name__}"


def _renamed(policy: Policy, name: str) -> Policy:
    renamed = copy.copy(policy)
    renamed.name, renamed.original = name, policy if policy.original is None else policy.original
    return renamed
