"""Checks that all processes of a group were given the same."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._version import __version__
from ..inputs.policies import Output, Policy
from ..runtime import distributed, native
from ..runtime.checkpoints import fingerprint
from ..runtime.group import Group
from .subsets import Drawing, Subsets

_ROWS = 4096  # of each table
_POLICIES = 64
_ACTED_ROWS = 13
_is_close = partial(math.isclose, rel_tol=1e-3, abs_tol=1e-4)


def check_drawn(drawn: Drawing | Subsets, policies: Sequence[Policy], **options: Any) -> None:
    """Check that all processes have the same versions, options, states and policies, before long work.

    Args:
        drawn: The drawn states.
        policies: The policies, of which all processes know all.
        options: Values that JSON can hold, by what messages call them.

    Raises:
        ValueError: A process has something else than process 0.
    """
    if distributed.current().count > 1:
        check_inputs(policies, drawn.states, drawn.source, **options, subsets=fingerprint(drawn.rows))


def check_inputs(policies: Sequence[Policy], states: Tensor, source: Tensor, **others: Any) -> None:
    """Check that all processes have the same versions, policies, states and other inputs, before long work.

    At most 64 policies, evenly spread, are asked for their actions in the first 13 states.

    Args:
        policies: The policies, of which all processes know all.
        states: (N, dim_s) states.
        source: (N,) their rows in the user's data.
        others: Other inputs, or fingerprints of them, by what messages call them.

    Raises:
        ValueError: A process has something else than process 0.
    """
    group = distributed.current()
    if group.count == 1:
        return
    _check_versions(group)
    names = fingerprint([policy.name for policy in policies])
    group.check_same(**others, **fingerprints(states=states), names_of_policies=names)
    chosen = [policies[i] for i in np.linspace(0, len(policies) - 1, min(len(policies), _POLICIES)).astype(int)]
    actions = [_sum(policy.output(states[:_ACTED_ROWS], source[:_ACTED_ROWS])) for policy in chosen]
    for rank, theirs in enumerate(group.everyone(actions)):
        for policy, mine, other in zip(chosen, actions, theirs, strict=True):
            if len(mine) != len(other) or not all(map(_is_close, mine, other)):
                raise ValueError(
                    f"policy {policy.name!r} acts otherwise in process {group.rank} than in process {rank}: give all "
                    "processes the same files, and policies that do not sample"
                )


def fingerprints(**tables: np.ndarray | Tensor) -> dict[str, str]:
    """Return a hash of the shape and of at most 8,191 evenly spread rows of each table, by the same names."""
    return {
        name: fingerprint(tuple(table.shape), table[:: max(1, len(table) // _ROWS)]) for name, table in tables.items()
    }


def _check_versions(group: Group) -> None:
    """Check that all processes compute with the same versions and instructions."""
    group.check_same(
        "install the same versions for all",
        version_of_sopr_fast=__version__,
        version_of_torch=torch.__version__,
        version_of_numpy=np.__version__,
        version_of_Python=platform.python_version(),
        instruction_set=native.build_info()["instruction_set"],
    )


def _sum(output: Output) -> list[float]:
    """Return the sums of means and standard deviations of actions over the states."""
    numbers = output.mean if output.std is None else torch.cat([output.mean, output.std], 1)
    return numbers.double().sum(0).tolist()
