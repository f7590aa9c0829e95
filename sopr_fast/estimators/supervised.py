"""What estimators that learn from known returns share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from ..inputs.logs import StoredStates, Transitions
from ..inputs.policies import (
    ArrayPolicy,
    Gaussian,
    Layout,
    Output,
    Policy,
    Probabilities,
    load_policies,
)
from ..inputs.returns import check_returns
from ..results.estimates import Estimates
from ..runtime import distributed
from ..sopr.subsets import Subsets, read_states
from .estimator import Estimator, Request

_ROWS = 256  # compared between processes

States: TypeAlias = StoredStates | Subsets


class SupervisedEstimator(Estimator):
    """Base of estimators that learn from known returns and need no rewards."""

    supervised: ClassVar[bool] = True
    needs_rewards: ClassVar[bool] = False

    def _estimate(self, request: Request) -> Estimates:
        names = [policy.name for policy in request.known]
        returns = check_returns(request.returns, names)
        states, (policies, known) = read(
            request.log,
            request.policies,
            request.known,
            names_of_known_policies=names,
            returns=returns.tolist(),
        )
        return self._evaluate(replace(request, policies=policies, log=states, known=known, returns=returns))

    @abstractmethod
    def _evaluate(self, request: Request) -> Estimates:
        """Return the estimates of `request.policies`.

        The log of the request is (rows, dim_s) logged states, or clustered subsets of them, in which all its policies
        can act. Its returns are (M,) float64.
        """


def read(log: Any, *groups: Any, **others: Any) -> tuple[States, list[list[Policy]]]:
    """Read logged states and policies that act in them; all processes must have the same.

    Args:
        log: Transitions, a mapping of arrays, or states as `sopr_fast.fit` accepts them, which may be `Subsets`.
        groups: Groups of policies, see `sopr_fast.load_policies`.
        others: What else all processes must have, see `Group.check_same`.

    Returns:
        States (rows, dim_s), or the subsets; the policies of each group, which expect indices of these states as their
        `source`.
    """
    states, source = read_states(log), None
    count = states.states_count if isinstance(states, Subsets) else len(states)
    if isinstance(log, Transitions) and log.source_count != count:
        count, source = log.source_count, torch.from_numpy(log.source)
    adapted = [load_policies(group).for_log(count, log) for group in groups]
    if source is not None:
        adapted = [[_AtSource(policy, source) for policy in group] for group in adapted]
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


def as_arrays(policies: list[Policy], columns: Tensor, layout: Layout) -> list[Policy]:
    """Return arrays of actions under the names of P policies, from what they do in U states (P, U, dim_c)."""

    def values(own: Tensor) -> Any:
        if layout.kind == "discrete":
            return Probabilities(own)
        mean, std = own[:, : layout.action_dim], own[:, layout.action_dim :]
        return Gaussian(mean, std) if std.any() else mean

    return [ArrayPolicy(policy.name, values(own)) for policy, own in zip(policies, columns, strict=True)]


class _AtSource(Policy):
    """A policy that looks up the user's rows of states in a table."""

    def __init__(self, policy: Policy, source: Tensor):
        self.name, self.original = policy.name, policy if policy.original is None else policy.original
        self._policy, self._source = policy, source

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        return self._policy.output(states, None if source is None else self._source[source])
