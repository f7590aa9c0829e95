"""What estimators that learn from known returns share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..inputs.logs import Transitions
from ..inputs.logs.stored import StoredStates
from ..inputs.policies import (
    Actor,
    ArrayPolicy,
    Gaussian,
    Layout,
    Output,
    Policy,
    Probabilities,
    check_actions,
    load,
)
from ..inputs.returns import check_returns
from ..ranking.estimates import Estimates
from ..runtime import distributed
from ..sopr.subsets import Subsets, read_states
from .estimator import Estimator, Request

_ROWS = 256  # compared between processes

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
            assert request.known is not None
            names = [policy.name for policy in request.known]
            returns = check_returns(request.returns, names)
            states, (policies, known) = read(
                request.log,
                request.policies,
                request.known,
                names_of_known_policies=names,
                returns=returns.tolist(),
            )
        return self._evaluate(SupervisedProblem(policies, known, returns, states, request))

    @abstractmethod
    def _evaluate(self, problem: SupervisedProblem) -> Estimates:
        """Return the estimates of `problem.policies`."""


def read(log: Any, *groups: Any, **others: Any) -> tuple[States, list[list[Policy]]]:
    """Read logged states and policies that act in them; all processes must have the same.

    Args:
        log: Transitions, a mapping of arrays, or states as `sopr_fast.fit` accepts them, which may be `Subsets`.
        groups: Groups of policies, see `sopr_fast.load_policies`.
        others: What else all processes must have, see `Group.check_same`.

    Returns:
        States (rows, dim_s), or the subsets; the policies of each group, which expect indices of these states as their
        `source`.

    Raises:
        ValueError: States or a policy are invalid, or differ between processes. The message names it.
    """
    states, source, count = _read_states(log)
    adapted = [load(group).for_log(count) for group in groups]
    if isinstance(log, Transitions):
        for actor in (policy for group in adapted for policy in group if isinstance(policy, Actor)):
            kind = "action" if actor.head == "action" else "discrete"
            check_actions([actor], Layout(kind, actor.action_dim, actor.action_dim), log.actions.shape[1])
    if source is not None:
        adapted = [[_AtSource(policy, torch.from_numpy(source)) for policy in group] for group in adapted]
    if distributed.current().count > 1:
        _, few = spread(states, _ROWS)
        names = [policy.name for group in adapted for policy in group]
        distributed.current().check_same(**others, number_of_states=count, states=few, names_of_policies=names)
    return states, adapted


def spread(states: States, most: int) -> tuple[Tensor, Tensor]:
    """Return at most `most` evenly spread states: their rows in the user's data, and the states (rows, dim_s)."""
    count = len(states.states if isinstance(states, Subsets) else states)
    rows = torch.linspace(0, count - 1, min(most, count), dtype=torch.float64, device="cpu").long()
    if isinstance(states, Subsets):
        return states.source[rows], states.states[rows]
    return rows, torch.from_numpy(states.read(rows.numpy()))


def _read_states(log: Any) -> tuple[States, np.ndarray | None, int]:
    """Return the logged states, their rows in the user's data, and the number of rows of that data.

    The rows are None where every row of the data is a state.
    """
    if isinstance(states := read_states(log), Subsets):
        return states, None, states.states_count
    if isinstance(log, Transitions) and log.source_count != len(log):
        return states, log.source, log.source_count
    return states, None, len(states)


def as_arrays(policies: list[Policy], columns: Tensor, layout: Layout) -> list[Policy]:
    """Return policies whose actions are known in advance.

    Args:
        policies: P policies.
        columns: (P, U, dim_c) what they do in U states.
        layout: Layout of the columns.

    Returns:
        Arrays of actions, indexed like the U states, under the names of the policies.
    """
    return [ArrayPolicy(policy.name, _values(own, layout)) for policy, own in zip(policies, columns, strict=True)]


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
