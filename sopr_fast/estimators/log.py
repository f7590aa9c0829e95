"""A log as the estimators read it: one table of states."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.logs import Transitions
from ..inputs.policies import Layout, Policy, collect, facts, probe
from ..inputs.policies.output import one_hot
from ..results.estimates import UncertainEstimateWarning
from ..runtime import distributed
from ..runtime.text import list_names
from ..runtime.warn import warn

_PARTS = ("states", "actions", "rewards", "next_states", "terminals", "episodes")  # that tell a log from others
_EVALUATED_ROWS = 65536
_COMPARED_ROWS = 1024  # whose actions may be in other units
_OFFSET = 4  # standard deviations from 0 beyond which a mean action is an offset
ROUNDING = 1e-6  # of float32
_ABOVE_ONE = 1e-4  # logarithm of a probability that is 1 but for rounding
_TOO_OFTEN, _SURELY = 1.1, 5.0  # times as often as by its probabilities; standard deviations


class Log:
    """Transitions as networks read them: normalised tensors on the CPU, where networks of their size are fastest.

    States and next states are rows of one table (U, dim_s), so that policies act in each of them once: the N logged
    states, then the next states that are not the state of the following row (ends of episodes). Actions are continuous,
    or discrete if `action_count` is their number. A column of continuous actions is centred at its mean if that is
    farther than 4 standard deviations from 0, and divided by its largest distance from the centre. `units` is a log
    whose units take the place of these.
    """

    def __init__(self, transitions: Transitions, *, action_count: int | None = None, units: Log | None = None):
        self.transitions = transitions
        self.facts: list[str] = []  # what a reader should see of the policies next to the log
        states, following, logged = transitions.states, transitions.next_states, transitions.actions
        self.count, self.state_dim = states.shape
        follows = np.zeros(self.count, bool)
        follows[:-1] = (following[:-1] == states[1:]).all(1)
        follows[transitions.episodes[1:] - 1] = False
        ends = np.flatnonzero(~follows)
        next_rows = np.arange(1, self.count + 1)
        next_rows[ends] = self.count + np.arange(len(ends))
        # (U,) int64 row of each state in the user's data; of a next state the row before it
        self.source = torch.from_numpy(np.concatenate([transitions.source, transitions.source[ends]]))
        # (U, dim_s) float32 table, in the units of the user's data
        self.raw_states = torch.from_numpy(np.concatenate([states, following[ends]]))
        # (dim_s,) float64 mean and standard deviation of the logged states, 1 where that is the rounding of a constant;
        # (dim_a,) float32 centre and scale of each column of continuous actions
        self.units: tuple[np.ndarray, ...] = _units(states, logged) if units is None else units.units
        self.state_mean, self.state_scale, self.action_centre, self.action_scale = self.units
        self._mean, self._scale = (torch.from_numpy(x).float() for x in (self.state_mean, self.state_scale))
        self._table = (self.raw_states - self._mean).div_(self._scale)
        self.discrete = action_count is not None
        actions = torch.from_numpy(logged)
        if action_count is not None and actions.shape[1] == 1 and action_count > 1:  # indices
            actions = one_hot(actions[:, 0], action_count)
        self.action_dim = actions.shape[1]  # as networks read them; for discrete actions their number
        self.actions = self.normalise_actions(actions)  # (N, action_dim) float32
        self.rewards = torch.from_numpy(transitions.rewards)
        self.terminals = torch.from_numpy(transitions.terminals).float()
        self.next = torch.from_numpy(next_rows)  # (N,) row of each next state in the table
        # (N,) bool: whether the next state is a logged row, or the row is terminal
        self.followed = transitions.terminals | (next_rows < self.count)
        self.initial = torch.from_numpy(transitions.episodes[:-1])  # (E,) first rows of the episodes

    def doubt(self, text: str, reasons: dict[str, str] | None = None) -> None:
        """Warn, and keep the text as a fact; {} stands for names and reasons, and nothing is said without any."""
        if reasons:
            text = text.format(list_names([f"{name!r} ({reason})" for name, reason in reasons.items()], 5))
        if reasons != {}:
            warn(text, UncertainEstimateWarning)
            self.facts.append(text)

    def denormalise(self, states: Tensor) -> Tensor:
        """Return normalised states in the units of the user's data."""
        return states * self._scale + self._mean

    def normalise_actions(self, actions: Tensor) -> Tensor:
        """Return actions (..., dim_a) of the user's data as networks read them; discrete ones as they are."""
        if self.discrete:
            return actions
        centre, scale = (torch.from_numpy(x) for x in (self.action_centre, self.action_scale))
        return (actions - centre).div_(scale)

    def identity(self) -> tuple[Any, ...]:
        """Return everything of the log that an estimate can depend on, for `learning.learn`."""
        return self.discrete, self.action_dim, *(getattr(self.transitions, part) for part in _PARTS)

    def states(self, rows: Tensor) -> Tensor:
        """Return normalised states (..., dim_s) of rows (...,) of the table."""
        return torch.embedding(self._table, rows)  # a quarter of the time of an index

    def inputs(self, rows: Tensor) -> Tensor:
        """Return normalised states and actions (..., dim_s + action_dim) of logged rows (...,)."""
        return torch.cat([self.states(rows), torch.embedding(self.actions, rows)], -1)

    def range(self) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest normalised states of the table, (dim_s,) each."""
        return self._table.amin(0), self._table.amax(0)

    def evaluated_rows(self, limit: int = _EVALUATED_ROWS) -> Tensor:
        """Return all logged rows, or `limit` evenly spaced ones if there are more."""
        if self.count <= limit:
            return torch.arange(self.count, device="cpu")
        return torch.linspace(0, self.count - 1, limit, dtype=torch.float64, device="cpu").long()


def _units(states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return mean and scale of states (N, dim_s), and centre and scale of actions (N, dim_a); see `Log`."""
    state_scale = states.std(0, dtype=np.float64)
    state_scale[state_scale <= ROUNDING * np.abs(states).max(0)] = 1.0
    mean, std = actions.mean(0, dtype=np.float64), actions.std(0, dtype=np.float64)
    centre = np.where(np.abs(mean) > _OFFSET * std, mean, 0).astype(np.float32)
    largest, magnitude = np.abs(actions - centre).max(0), np.abs(centre)
    constant = largest <= ROUNDING * magnitude
    scale = np.where(constant, np.where(magnitude > 0, magnitude, 1), largest).astype(np.float32)
    return states.mean(0, dtype=np.float64), state_scale, centre, scale


def read(policies: list[Policy], transitions: Transitions, units: Log | None = None) -> tuple[Layout, Log]:
    """Return the layout of the policies' columns, and the log, both checked; all processes must have the same."""
    states, source = torch.from_numpy(transitions.states), torch.from_numpy(transitions.source)
    layout = probe(policies, states, source, logged=transitions.actions)
    logged = transitions.log_probs
    if layout.kind == "discrete" and logged is not None and logged.max() > _ABOVE_ONE:
        row, chance = transitions.source[logged.argmax()], np.exp(logged.max())
        raise ValueError(f"log: the probability of a discrete action is {chance:.3g} at row {row}: give it from 0 to 1")
    rows = np.linspace(0, len(states) - 1, min(len(states), _COMPARED_ROWS)).astype(np.int64)
    acted = collect(policies, states[rows], source[rows], layout)
    distributed.current().check_same(**{part: getattr(transitions, part) for part in (*_PARTS, "log_probs")})
    log = Log(transitions, action_count=layout.action_count, units=units)
    if log.discrete and logged is not None:
        _check_probabilities(log.actions.argmax(1).numpy(), np.exp(-logged.clip(min=-99).astype(np.float64)))
    for fact in facts(policies, layout, acted.numpy(), transitions.states[rows], transitions.actions, rows):
        log.doubt(fact)
    return layout, log


def _check_probabilities(actions: np.ndarray, inverse: np.ndarray) -> None:
    """Raise ValueError if one of the actions (N,) is logged more often than by its probabilities, given their inverses.

    The inverse where an action is logged, 0 elsewhere, has a mean of 1, or less if the action is not always possible.
    """
    sums, squares = (np.bincount(actions, values) for values in (inverse, inverse**2))
    excess = sums - len(actions)
    wrong = (excess > _SURELY * np.sqrt(squares - 2 * sums + len(actions))) & (sums > _TOO_OFTEN * len(actions))
    if wrong.any():
        action = int(np.argmax(wrong))
        raise ValueError(
            f"log: action {action} is logged {sums[action] / len(actions):.3g} times as often as by its probabilities: "
            "give all rows, with probabilities that add up to 1 over the actions, or leave these out, "
            "columns={'unread': …}"
        )
