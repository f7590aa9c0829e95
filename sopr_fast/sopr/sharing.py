"""Checks that all processes of a group were given the same."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .._version import __version__
from ..policies import Policy
from ..runtime import distributed, native
from ..runtime.checkpoints import fingerprint
from .subsets import Drawing, Subsets

_STATES = 4096
_POLICIES = 64
_ROWS = 13


def check_versions(group: distributed.Group) -> None:
    """Check that all processes compute with the same versions and instructions.

    Raises:
        ValueError: A process has another one than process 0.
    """
    group.check_same(
        "install the same versions for all",
        version_of_sopr_fast=__version__,
        version_of_torch=torch.__version__,
        version_of_numpy=np.__version__,
        version_of_Python=platform.python_version(),
        instruction_set=native.build_info()["instruction_set"],
    )


def check_processes(drawn: Drawing | Subsets, policies: Sequence[Policy], **options: Any) -> None:
    """Check that all processes have the same versions, options, states and policies, before long work.

    At most 64 policies, evenly spread, are asked for their actions in a few states.

    Args:
        drawn: The drawn states.
        policies: The policies, of which all processes know all.
        options: Values that JSON can hold, by what messages call them.

    Raises:
        ValueError: A process has something else than process 0.
    """
    group = distributed.current()
    if group.count == 1:
        return
    check_versions(group)
    every = max(1, len(drawn.states) // _STATES)
    names = fingerprint([policy.name for policy in policies])
    group.check_same(**options, states=fingerprint(drawn.rows, drawn.states[::every]), names_of_policies=names)
    few = drawn.states[:_ROWS], drawn.source[:_ROWS]
    chosen = np.linspace(0, len(policies) - 1, min(len(policies), _POLICIES)).astype(int)
    actions = {policies[i].name: policies[i].output(*few).mean.double().sum(0).tolist() for i in chosen}
    for rank, theirs in enumerate(group.everyone(list(actions.values()))):
        for name, mine, other in zip(actions, actions.values(), theirs, strict=True):
            if not (len(mine) == len(other) and np.allclose(mine, other, rtol=1e-3, atol=1e-4)):
                raise ValueError(
                    f"policy {name!r} acts otherwise in process {group.rank} than in process {rank}: give all "
                    "processes the same files, and policies that do not sample"
                )
