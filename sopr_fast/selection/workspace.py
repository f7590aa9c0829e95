"""A log and policies as all methods of a panel share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..estimators import Estimator
from ..estimators.action_distance import shared_distances
from ..estimators.coverage import uncovered_shares
from ..estimators.log import Log, PolicyActions, check_actions, check_same_log
from ..inputs.logs import Transitions, load
from ..inputs.logs.keys import KEYS, find_key
from ..inputs.logs.states import as_states
from ..inputs.policies import ArrayPolicy, Layout, Output, Policy, as_policies, probe
from ..runtime.checkpoints import fingerprint
from ..runtime.timing import Timings
from ..sopr.columns import collect_shared
from ..sopr.subsets import Subsets, as_subsets

ROWS = 100_000
_COMPARED_ROWS = 2048
_TABLE_BYTES = 1 << 29
_FEWEST_EPISODES = 10
_PIECES = 100


@dataclass(frozen=True, eq=False)
class Workspace:
    """Policies and the log that they are valued on, each policy asked for its actions once.

    Attributes:
        policies: P policies. Deterministic ones remember their actions on the rows of the log.
        layout: Layout of their columns.
        log: Transitions, thinned to whole episodes; or logged states, or `Subsets`, where the log holds no rewards.
        states: (U, dim_s) float32 states of the thinned log.
        source: (U,) int64 rows of these states in the user's data.
        distances: (P, P) float64 action distances (Eq. 3 of the paper) on 2,048 states.
        acting: P hashes of what the policies do in these states.
        action_count: Number of discrete actions, or None.
        subsets: Clustered subsets of the log to use again, or None.
        seconds: Time spent on reading and acting.
    """

    policies: list[Policy]
    layout: Layout
    log: Any
    states: np.ndarray
    source: np.ndarray
    distances: np.ndarray
    acting: list[str]
    action_count: int | None
    subsets: Subsets | None = None
    seconds: Timings = field(default_factory=Timings)

    @property
    def names(self) -> list[str]:
        return [policy.name for policy in self.policies]

    @property
    def has_rewards(self) -> bool:
        return isinstance(self.log, Transitions)

    def take(self, indices: np.ndarray) -> list[Policy]:
        """Return some of the policies."""
        return [self.policies[i] for i in indices]

    def reorder(self, indices: np.ndarray) -> Workspace:
        """Return the workspace of some of the policies, in the given order."""
        return replace(
            self,
            policies=self.take(indices),
            distances=self.distances[np.ix_(indices, indices)],
            acting=[self.acting[i] for i in indices],
        )

    def copies(self, first: str | None = None) -> dict[int, int]:
        """Return index -> index of an earlier policy that acts alike in all compared states.

        Args:
            first: Name of the policy that counts as the earliest.
        """
        names = self.names
        kept: list[int] = []
        copies: dict[int, int] = {}
        repeated = np.flatnonzero((self.distances == 0).sum(1) > 1).tolist()
        for i in sorted(repeated, key=lambda i: names[i] != first):
            same = np.flatnonzero(self.distances[i, kept] == 0)
            if len(same):
                copies[i] = kept[same[0]]
            else:
                kept.append(i)
        return copies

    def describe(self, methods: dict[str, Estimator], **numbers: Any) -> dict[str, Any]:
        """Return what a run rests on, as plain text and numbers: its arguments, the log, methods by label.

        Args:
            methods: Label -> estimator.
            numbers: Arguments of the run by name.
        """
        return {
            **numbers,
            "action_count": self.action_count,
            "states": len(self.states),
            "has_rewards": self.has_rewards,
            "reused_subsets": None if self.subsets is None else len(self.subsets),
            "methods": {label: repr(method) for label, method in methods.items()},
        }

    def coverage(self) -> np.ndarray:
        """Return (P,) shares of logged states in which each policy acts as the log does; NaN without logged actions.

        See `sopr_fast.estimators.coverage.uncovered`, whose shares are the complement.
        """
        if not isinstance(self.log, Transitions):
            return np.full(len(self.policies), np.nan)
        try:
            log = Log(self.log, action_count=self.layout.action_dim if self.layout.kind == "discrete" else None)
        except ValueError:  # logged actions of another kind, which matter to critics alone
            return np.full(len(self.policies), np.nan)
        if log.action_dim != self.layout.action_dim:
            return np.full(len(self.policies), np.nan)
        actions = PolicyActions(self.policies, self.layout, log, memory=0, progress=False)
        return 1 - uncovered_shares(actions, log, progress=False)

    @classmethod
    def build(
        cls,
        policies: Any,
        log: Any,
        *,
        rows: int = ROWS,
        action_count: int | None = None,
        subsets: Any = None,
        needs_actions: bool = False,
    ) -> Workspace:
        """Read the log and ask every policy for its actions.

        Args:
            policies: P policies, see `sopr_fast.load_policies`.
            log: Transitions, see `sopr_fast.load_log`; or logged states, see `sopr_fast.fit`.
            rows: Transitions to keep: of a larger log, some episodes are drawn.
            action_count: Number of discrete actions, where policies return indices.
            subsets: Clustered `Subsets` of the log to use again, or their file; None for none.
            needs_actions: Whether a method learns from logged actions, which must then be as those of the policies.

        Raises:
            TypeError: The log or a policy is of the wrong type.
            ValueError: The log or a policy is invalid; the message names the row or the policy.
            RuntimeError: A policy raised an error.
        """
        timings = Timings()
        with timings.stage("reading"):
            log = read_log(log)
            reused = None if subsets is None else _reused(subsets, log)
            if isinstance(log, Transitions):
                log = thin(log, rows)
                count, states, source = log.source_count, log.states, log.source
            elif isinstance(log, Subsets):
                count, few = log.states_count, _spread(len(log.states), rows)
                states, source = log.states.numpy()[few], log.source.numpy()[few]
            else:
                count = len(log)
                source = _spread(count, rows)
                states = log.read(source)
        with timings.stage("acting"):
            adapted = as_policies(policies, states_count=count, action_count=action_count)
            tensors = torch.from_numpy(states), torch.from_numpy(source)
            layout = probe(adapted, *tensors)
            if isinstance(log, Transitions) and needs_actions:
                check_actions(adapted, layout, log)
            if isinstance(log, Transitions):
                check_same_log(log, adapted)
            compared_rows = torch.from_numpy(_spread(len(states), _COMPARED_ROWS))
            compared = collect_shared(adapted, tensors[0][compared_rows], tensors[1][compared_rows], layout).numpy()
            if isinstance(log, Transitions):
                adapted = remember(adapted, layout, *tensors, count)
            distances = shared_distances(compared, compared)
            acting = [fingerprint(columns) for columns in compared]
        return cls(adapted, layout, log, states, source, distances, acting, action_count, reused, timings)


def read_log(log: Any) -> Any:
    """Return transitions where the log holds rewards, else its states, or the subsets that it is.

    Raises:
        TypeError: The log is neither.
        ValueError: An array of it is invalid, or a file is damaged.
    """
    if isinstance(log, Transitions):
        return log
    if (subsets := as_subsets(log)) is not None:
        return subsets.to("cpu")
    if isinstance(log, Mapping):
        if any(key in log for key in KEYS["rewards"]) and any(key in log for key in KEYS["actions"]):
            return load(log)
        return as_states(log[find_key("states", log, "log")])
    if isinstance(log, np.ndarray | Tensor | list):
        return as_states(log)
    try:
        return load(log)
    except (TypeError, ValueError):
        return as_states(log)  # a file of states alone; its error is the clearer one


def _reused(subsets: Any, log: Any) -> Subsets:
    """Return subsets to use again, whose states are found in the user's data by the rows of the log.

    Raises:
        TypeError: They are no subsets.
        ValueError: They are of another log, or the log consists of subsets itself.
    """
    if isinstance(log, Subsets):
        raise ValueError("subsets are given twice: pass clustered Subsets as the log or as subsets")
    given = as_subsets(subsets)
    if given is None:
        raise TypeError(
            f"subsets must be Subsets or a .safetensors file that Subsets.save wrote, got {type(subsets).__name__}"
        )
    given = given.to("cpu")
    width = log.states.shape[1] if isinstance(log, Transitions) else log.shape[1]
    rows = log.source_count if isinstance(log, Transitions) else len(log)
    if isinstance(log, Transitions) and given.states_count == len(log) != rows:  # drawn from the transitions
        given = replace(given, source=torch.from_numpy(log.source)[given.source], states_count=rows)
    if (given.states_count, given.state_dim) != (rows, width):
        raise ValueError(
            f"the subsets were drawn from {given.states_count} states of {given.state_dim} columns, but the log has "
            f"{rows} of {width}; draw subsets of this log, or leave them out"
        )
    if not _holds(log, given.source.numpy(), given.states.numpy()):
        raise ValueError(
            "the subsets hold other states than the log does at these rows; draw subsets of this log, or leave them out"
        )
    return given


def _holds(log: Any, source: np.ndarray, states: np.ndarray) -> bool:
    """Return whether rows `source` (U,), ascending, of the user's data are these states, as far as the log has them."""
    if not isinstance(log, Transitions):
        return log.has_rows(source, states)
    places = np.searchsorted(log.source, source).clip(max=len(log) - 1)
    there = log.source[places] == source
    return np.array_equal(log.states[places[there]], states[there])


def thin(transitions: Transitions, rows: int) -> Transitions:
    """Keep whole episodes of a log, about `rows` of its rows: of each so many adjacent episodes one at random.

    Evenly spaced episodes would be those of a single policy where several took turns. If fewer than ten episodes were
    kept, episodes are cut into pieces of `rows` / 100 first, whose ends count as timeouts.
    """
    count = len(transitions)
    if count <= rows:
        return transitions
    episodes = transitions.episodes
    if (len(episodes) - 1) * rows // count < _FEWEST_EPISODES:
        episodes = np.union1d(episodes, np.arange(0, count, max(1, rows // _PIECES)))
    last = len(episodes) - 1
    edges = np.linspace(0, last, last * rows // count + 1).astype(np.int64)
    chosen = np.random.default_rng(0).integers(edges[:-1], edges[1:])
    kept = np.concatenate([np.arange(episodes[e], episodes[e + 1]) for e in chosen])
    lengths = np.diff(episodes)[chosen]
    ends = np.cumsum(lengths)
    timeouts = transitions.timeouts[kept]
    timeouts[ends - 1] = ~transitions.terminals[kept[ends - 1]]
    return replace(
        transitions,
        states=transitions.states[kept],
        actions=transitions.actions[kept],
        rewards=transitions.rewards[kept],
        next_states=transitions.next_states[kept],
        terminals=transitions.terminals[kept],
        timeouts=timeouts,
        episodes=np.concatenate([[0], ends]),
        source=transitions.source[kept],
        log_probs=None if transitions.log_probs is None else transitions.log_probs[kept],
    )


def remember(policies: list[Policy], layout: Layout, states: Tensor, source: Tensor, states_count: int) -> list[Policy]:
    """Return policies that look up their actions on the rows of a log; stochastic ones and arrays stay as they are.

    Args:
        policies: P policies.
        layout: Layout of their columns.
        states: (U, dim_s) logged states.
        source: (U,) their rows in the user's data.
        states_count: Number of rows of that data.
    """
    own = [i for i, policy in enumerate(policies) if not isinstance(policy, ArrayPolicy)]
    if layout.kind == "gaussian" or 4 * len(own) * len(states) * layout.width > _TABLE_BYTES or not own:
        return policies
    table = collect_shared([policies[i] for i in own], states, source, layout)
    row_of = torch.full((states_count,), -1, dtype=torch.int64, device="cpu")
    row_of[source] = torch.arange(len(source), device="cpu")
    result = list(policies)
    for i, actions in zip(own, table, strict=True):
        result[i] = _Remembered(policies[i], layout.kind, states, row_of, actions)
    return result


class _Remembered(Policy):
    """A deterministic policy, or one of discrete actions, with its output on the rows of a log."""

    def __init__(self, policy: Policy, kind: str, states: Tensor, row_of: Tensor, table: Tensor):
        self.name, self.original = policy.name, policy if policy.original is None else policy.original
        self._policy, self._kind, self._states, self._row_of, self._table = policy, kind, states, row_of, table

    def _output(self, states: Tensor, source: Tensor | None) -> Output:
        if source is None:
            return self._policy.output(states)
        rows = self._row_of[source]
        same = (rows >= 0) & (self._states[rows] == states).all(1)
        mean = self._table[rows]
        if not same.all():  # a state after the end of an episode has the row of the one before
            mean[~same] = self._policy.output(states[~same], source[~same]).mean
        return Output(self._kind, mean)


def _spread(count: int, most: int) -> np.ndarray:
    """Return at most `most` of `count` indices, evenly spaced."""
    return np.linspace(0, count - 1, min(most, count)).astype(np.int64)
