"""What estimators that learn from known returns share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..data import Transitions
from ..data.keys import find_key
from ..data.states import as_states
from ..data.stored import StoredStates
from ..policies import ArrayPolicy, Gaussian, Layout, Output, Policy, Probabilities, as_policies
from ..returns import check_returns
from ..sopr.subsets import Subsets, as_subsets
from .estimates import Estimates
from .estimator import Estimator, Request

States: TypeAlias = StoredStates | Subsets


@dataclass(frozen=True)
class SupervisedProblem:
    """P policies to evaluate and M known ones.

    Attributes:
        policies: Policies to evaluate.
        known: Policies with known returns.
        returns: (M,) float64 returns.
        states: (rows, dim_s) logged states, or clustered subsets of them.
        request: The other arguments of the call.
    """

    policies: list[Policy]
    known: list[Policy]
    returns: np.ndarray
    states: States
    request: Request


class SupervisedEstimator(Estimator):
    """Base of estimators that learn from known returns and need no rewards."""

    supervised: ClassVar[bool] = True
    needs_rewards: ClassVar[bool] = False

    def _estimate(self, request: Request) -> Estimates:
        with request.timings.stage("policies"):
            states, source, count = read_states(request.log)
            known, policies = (
                read_policies(group, source, count, request.action_count) for group in (request.known, request.policies)
            )
            returns = check_returns(request.returns, [policy.name for policy in known])
        return self._evaluate(SupervisedProblem(policies, known, returns, states, request))

    @abstractmethod
    def _evaluate(self, problem: SupervisedProblem) -> Estimates:
        """Return the estimates of `problem.policies`."""


def read_states(log: Any) -> tuple[States, np.ndarray | None, int]:
    """Return the logged states, their rows in the user's data, and the number of rows of that data.

    Args:
        log: Transitions, a mapping of arrays, or states as `sopr_fast.fit` accepts them, which may be `Subsets`.

    Returns:
        States (rows, dim_s), or the subsets; their rows (rows,), or None where every row of the data is a state; the
        number of rows.
    """
    if (subsets := as_subsets(log)) is not None:
        return subsets, None, subsets.states_count
    if isinstance(log, Mapping):
        log = log[find_key("states", log, "log")]
    states = as_states(log)
    if isinstance(log, Transitions) and log.source_count != len(log):
        return states, log.source, log.source_count
    return states, None, len(states)


def read_policies(
    policies: Any, source: np.ndarray | None, states_count: int, action_count: int | None
) -> list[Policy]:
    """Return policies that expect indices of the states returned by `read_states` as their `source`."""
    adapted = as_policies(policies, states_count=states_count, action_count=action_count)
    return adapted if source is None else [_AtSource(policy, torch.from_numpy(source)) for policy in adapted]


def as_arrays(policies: list[Policy], columns: Tensor, layout: Layout) -> list[Policy]:
    """Return policies whose actions are known in advance.

    Args:
        policies: P policies.
        columns: (P, U, dim_c) what they do in U states.
        layout: Layout of the columns.

    Returns:
        Arrays of actions, indexed like the U states, under the names of the policies.
    """
    return [
        ArrayPolicy(policy.name, _values(own, layout), states_count=len(own))
        for policy, own in zip(policies, columns, strict=True)
    ]


def _values(columns: Tensor, layout: Layout) -> Any:
    if layout.kind == "discrete":
        return Probabilities(columns)
    mean, std = columns[:, : layout.action_dim], columns[:, layout.action_dim :]
    return Gaussian(mean, std) if std.any() else mean


class _AtSource(Policy):
    """A policy that looks up the user's rows of states in a table."""

    def __init__(self, policy: Policy, source: Tensor):
        self.name, self.original = policy.name, policy if policy.original is None else policy.original
        self._policy, self._source = policy, source

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        return self._policy.output(states, None if source is None else self._source[source])
