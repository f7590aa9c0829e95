"""A log as the estimators read it: one table of states, and what every policy does in them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..inputs.logs import Transitions, load_transitions
from ..inputs.policies import ArrayPolicy, Layout, Policy, as_policies, check_actions, collect, probe
from ..inputs.policies.output import one_hot
from ..ranking.estimates import warn_about
from ..runtime import distributed
from ..runtime.context import current, current_device
from ..runtime.progress import progress_bar

_ROWS = 16384
_EVALUATED_ROWS = 65536
_OFFSET = 4  # standard deviations from 0 beyond which a mean action is an offset
_LEAST_SPREAD = 0.02  # of a column's scale, with _OUTLIERS left out
_OUTLIERS = 0.01  # share of the rows
_ROUNDING = 1e-6  # of float32


@dataclass(frozen=True)
class Units:
    """Conversion of a log's states and actions to the inputs of networks.

    Attributes:
        mean: (dim_s,) float32 mean of the logged states, on the device of the networks.
        scale: (dim_s,) float32 standard deviation of the logged states, on the same device.
        action_centre: (dim_a,) float32 mean of each column of continuous actions whose mean is farther than 4 standard
            deviations from 0; 0 for other columns and discrete actions.
        action_scale: (dim_a,) float32 largest distance of each column of continuous actions from its centre. Where
            actions are constant, the magnitude of the centre, or 1 if that is 0; 1 for discrete actions.
        action_dim: Width of actions as networks read them; for discrete actions their number.
        discrete: Whether actions are discrete.
    """

    mean: Tensor
    scale: Tensor
    action_centre: np.ndarray
    action_scale: np.ndarray
    action_dim: int
    discrete: bool

    @property
    def state_dim(self) -> int:
        """dim_s."""
        return len(self.mean)

    def normalise(self, states: Tensor) -> Tensor:
        """Return states with mean 0 and standard deviation 1 over the log."""
        return (states - self.mean) / self.scale

    def denormalise(self, states: Tensor) -> Tensor:
        """Return normalised states in the log's units."""
        return states * self.scale + self.mean

    def normalise_actions(self, actions: Tensor) -> Tensor:
        """Return actions (..., dim_a) in the log's units as networks read them; discrete ones as they are."""
        if self.discrete:
            return actions
        centre, scale = (torch.from_numpy(x).to(actions.device) for x in (self.action_centre, self.action_scale))
        return (actions - centre).div_(scale)


class Log:
    """Transitions as tensors.

    States and next states are rows of one table (U, dim_s), so that policies act in each of them once: the N logged
    states, then the next states that are not the state of the following row (ends of episodes).

    Args:
        transitions: The logged transitions.
        action_count: Number of discrete actions, or None for continuous ones.
        device: Device of the tensors.

    Warns:
        UncertainEstimateWarning: Outliers dwarf all other actions.

    Attributes:
        transitions: The logged transitions.
        device: Device of the tensors.
        count: N.
        raw_states: (U, dim_s) float32 table on the CPU.
        source: (U,) int64 row of each state in the user's data, on the CPU; of a next state the row before it.
        actions: (N, action_dim) float32 as networks read them, see `Units.normalise_actions`.
        rewards: (N,) float32.
        terminals: (N,) float32, 1 where the environment ended, else 0.
        next: (N,) int64 row of each next state in the table.
        followed: (N,) bool on the CPU: whether the next state is a logged row, or the row is terminal.
        initial: (E,) int64 rows of the episodes' first states.
        units: Conversion to the inputs of networks.
        state_scale: (dim_s,) float64 standard deviation of the logged states, 1 where it is the rounding of a constant.
    """

    def __init__(
        self, transitions: Transitions, *, action_count: int | None = None, device: torch.device | str = "cpu"
    ):
        self.transitions, self.device = transitions, torch.device(device)
        states, following = transitions.states, transitions.next_states
        self.count = len(states)
        follows = np.zeros(self.count, bool)
        follows[:-1] = (following[:-1] == states[1:]).all(1)
        follows[transitions.episodes[1:] - 1] = False
        ends = np.flatnonzero(~follows)
        next_rows = np.arange(1, self.count + 1)
        next_rows[ends] = self.count + np.arange(len(ends))
        self.source = torch.from_numpy(np.concatenate([transitions.source, transitions.source[ends]]))
        self.raw_states = torch.from_numpy(np.concatenate([states, following[ends]]))
        self._table = self.raw_states.to(self.device)
        self.state_scale = states.std(0, dtype=np.float64)
        self.state_scale[self.state_scale <= _ROUNDING * np.abs(states).max(0)] = 1.0
        mean, scale = (
            torch.from_numpy(x).float().to(self.device) for x in (states.mean(0, dtype=np.float64), self.state_scale)
        )
        logged = transitions.actions
        if action_count is None:
            actions, (action_centre, action_scale) = torch.from_numpy(logged), _action_units(logged)
            _warn_of_outliers(transitions, action_centre, action_scale)
        else:
            actions = _one_hot_actions(logged, action_count)
            action_centre, action_scale = np.zeros(action_count, np.float32), np.ones(action_count, np.float32)
        self.units = Units(
            mean, scale, action_centre, action_scale, actions.shape[1], discrete=action_count is not None
        )
        self.actions = self.units.normalise_actions(actions).to(self.device)
        self.rewards = torch.from_numpy(transitions.rewards).to(self.device)
        self.terminals = torch.from_numpy(transitions.terminals).float().to(self.device)
        self.next = torch.from_numpy(next_rows).to(self.device)
        self.followed = transitions.terminals | (next_rows < self.count)
        self.initial = torch.from_numpy(transitions.episodes[:-1]).to(self.device)

    def identity(self) -> tuple[Any, ...]:
        """Return everything of the log that an estimate can depend on, for `learning.learn`."""
        logged = self.transitions
        parts = logged.states, logged.actions, logged.rewards, logged.next_states, logged.terminals, logged.episodes
        return self.discrete, self.action_dim, *parts

    @property
    def state_dim(self) -> int:
        """dim_s."""
        return self.units.state_dim

    @property
    def action_dim(self) -> int:
        """Width of actions as networks read them."""
        return self.units.action_dim

    @property
    def discrete(self) -> bool:
        """Whether actions are discrete."""
        return self.units.discrete

    def states(self, rows: Tensor) -> Tensor:
        """Return normalised states (..., dim_s) of rows (...,) of the table."""
        return self.units.normalise(self._table[rows])

    def range(self) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest normalised states of the table, (dim_s,) each."""
        rows = torch.arange(len(self.raw_states), device=self.device)
        ranges = [(s.amin(0), s.amax(0)) for s in (self.states(chunk) for chunk in rows.split(1 << 18))]
        return torch.stack([low for low, _ in ranges]).amin(0), torch.stack([high for _, high in ranges]).amax(0)

    def evaluated_rows(self, limit: int = _EVALUATED_ROWS) -> Tensor:
        """Return all logged rows, or `limit` evenly spaced ones if there are more."""
        if self.count <= limit:
            return torch.arange(self.count, device=self.device)
        return torch.linspace(0, self.count - 1, limit, dtype=torch.float64, device="cpu").long().to(self.device)

    def pools(self, usable: np.ndarray, members: int, seed: int) -> list[np.ndarray]:
        """Return the rows that each member of an ensemble learns from.

        Args:
            usable: (N,) bool, whether a row may be learned from.
            members: Number of members.
            seed: Seed of the bootstrap.

        Returns:
            All usable rows for a single member; for more, those of a bootstrap sample of episodes each.
        """
        if members == 1:
            return [np.flatnonzero(usable)]
        episodes = self.transitions.episodes
        pools = []
        for member in range(members):
            random = np.random.default_rng([seed, 2, member])
            drawn = random.integers(0, len(episodes) - 1, len(episodes) - 1)
            rows = np.concatenate([np.arange(episodes[e], episodes[e + 1]) for e in drawn])
            rows = rows[usable[rows]]
            pools.append(rows if len(rows) else np.flatnonzero(usable))
        return pools


def _action_units(actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the centre and the scale (dim_a,) float32 of continuous actions (N, dim_a), see `Units`."""
    mean, std = actions.mean(0, dtype=np.float64), actions.std(0, dtype=np.float64)
    centre = np.where(np.abs(mean) > _OFFSET * std, mean, 0).astype(np.float32)
    largest, magnitude = np.abs(actions - centre).max(0), np.abs(centre)
    constant = largest <= _ROUNDING * magnitude
    return centre, np.where(constant, np.where(magnitude > 0, magnitude, 1), largest).astype(np.float32)


def _warn_of_outliers(transitions: Transitions, centre: np.ndarray, scale: np.ndarray) -> None:
    """Warn of columns whose standard deviation is below 2 % of their scale once the 1 % farthest rows are left out."""
    outliers = {}
    for j in range(transitions.actions.shape[1]):
        actions = transitions.actions[:, j]
        distances = np.abs(actions - centre[j])
        last = len(actions) - int(_OUTLIERS * len(actions)) - 1
        usual = actions[distances <= np.partition(distances, last)[last]]
        spread = usual.std(dtype=np.float64)
        if np.ptp(usual) > 2 * _ROUNDING * abs(centre[j]) and spread < _LEAST_SPREAD * scale[j]:
            row = int(distances.argmax())
            where = f"{actions[row]:.4g} at row {transitions.source[row]}"
            outliers[f"action {j}"] = f"{where}, standard deviation otherwise {spread:.2g}"
    warn_about(
        outliers,
        "log: outliers in {}: networks read actions in units of the largest, so they hardly tell the others apart; "
        "remove such rows, or clip their actions to what the environment carries out",
    )


def _one_hot_actions(actions: np.ndarray, count: int) -> Tensor:
    """Return discrete actions (N, count), one-hot, from indices (N, 1) or one-hot rows."""
    if actions.shape[1] == 1 and count > 1:
        index = actions[:, 0]
        wrong = (index != np.round(index)) | (index < 0) | (index >= count)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(
                f"log: action {index[row]} at row {row} is not an index from 0 to {count - 1}; check action_count"
            )
        return one_hot(torch.from_numpy(index), count)
    if actions.shape[1] != count or not np.isin(actions, (0, 1)).all() or (actions.sum(1) != 1).any():
        raise ValueError(f"log: discrete actions must be indices (N, 1) or one-hot (N, {count}), got {actions.shape}")
    return torch.from_numpy(actions)


def read(policies: Any, log: Any) -> tuple[list[Policy], Layout, Log]:
    """Read and check policies and the log to evaluate them on; all processes must have the same.

    Args:
        policies: See `Estimator.estimate`.
        log: See `Estimator.estimate`.

    Returns:
        Policies, the layout of their columns, and the log.

    Raises:
        TypeError: A policy or the log is of the wrong type.
        ValueError: A policy or a row of the log is invalid, or differs between processes. The message names it.
        OSError: A file cannot be read.
    """
    transitions = load_transitions(log)
    adapted = as_policies(policies, states_count=transitions.source_count)
    states, source = torch.from_numpy(transitions.states), torch.from_numpy(transitions.source)
    layout = probe(adapted, states, source, batch_size=current().batch_size)
    check_actions(adapted, layout, transitions.actions.shape[1])
    check_same_log(transitions, adapted)
    prepared = Log(
        transitions, action_count=layout.action_dim if layout.kind == "discrete" else None, device=current_device()
    )
    return adapted, layout, prepared


def logged_arrays(transitions: Transitions) -> dict[str, np.ndarray]:
    """Return what a log holds besides its states, by what messages call it."""
    log_probs = {} if transitions.log_probs is None else {"log_probabilities": transitions.log_probs}
    return {
        "logged_actions": transitions.actions,
        "rewards": transitions.rewards,
        "next_states": transitions.next_states,
        "terminals": transitions.terminals,
        "episodes": transitions.episodes,
        **log_probs,
    }


def check_same_log(transitions: Transitions, policies: Sequence[Policy]) -> None:
    """Check that all processes of the group have the same log and policies of the same names.

    Raises:
        ValueError: A process has another one; the message names it.
    """
    names = [policy.name for policy in policies]
    distributed.current().check_same(states=transitions.states, **logged_arrays(transitions), names_of_policies=names)


def check_next_actions(policies: Sequence[Policy], log: Log) -> None:
    """Check that the log tells what arrays of actions do next.

    Raises:
        ValueError: A policy is an array of actions, and no row of the log is followed by another.
    """
    array = next((policy for policy in policies if isinstance(policy, ArrayPolicy)), None)
    if array is not None and not log.followed.any():
        raise ValueError(
            f"policy {array.name!r} is an array of actions, but no row of the log is followed by another row of its "
            "episode, so its next actions are unknown; pass the policy itself"
        )


class PolicyActions:
    """Actions of every policy in the states of a log.

    These are actions, samples from stochastic policies, or probabilities of discrete actions. They are collected once
    if they fit in `memory` bytes, else anew for every batch. What an array of actions does in a next state that is no
    logged row is unknown.

    Args:
        policies: P policies.
        layout: Layout of their columns.
        log: The log.
        draws: Actions sampled in every state of a stochastic policy.
        seed: Seed of the sampled actions.
        memory: Largest size of the table of actions, in bytes.

    Attributes:
        policies: The policies.
        layout: Layout of their columns.
        log: The log.
        seed: Seed of the sampled actions.
        draws: Actions sampled in every state; 1 where no policy is stochastic.
        arrays: (P,) bool, whether each policy is an array of actions.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        layout: Layout,
        log: Log,
        *,
        draws: int = 1,
        seed: int = 0,
        memory: float = 1 << 30,
    ):
        self.policies, self.layout, self.log = list(policies), layout, log
        self.seed = seed
        self.draws = draws if layout.kind == "gaussian" else 1
        self.arrays = np.array([isinstance(policy, ArrayPolicy) for policy in policies])
        self._arrays, self._cut = (torch.from_numpy(x).to(log.device) for x in (self.arrays, ~log.followed))
        self._table = None
        shape = (self.draws, len(log.raw_states), len(self.policies), layout.action_dim)
        if 4 * np.prod(shape, dtype=np.float64) <= memory:
            with progress_bar(shape[1], "acting", "state") as bar:
                table = torch.empty(shape, dtype=torch.float32, device="cpu")
                self._table = self._fill(table, bar.update).to(log.device)

    def of(self, part: slice) -> PolicyActions:
        """Return the actions of adjacent policies."""
        own = copy.copy(self)
        own.policies, own.arrays, own._arrays = self.policies[part], self.arrays[part], self._arrays[part]
        own._table = None if self._table is None else self._table[:, :, part]
        return own

    def identity(self) -> tuple[Any, ...]:
        """Return everything that distinguishes these policies on this log from others, for `learning.learn`."""
        taken = self(self.log.evaluated_rows()) if self._table is None else self._table
        return [policy.name for policy in self.policies], self.arrays, taken, *self.log.identity()

    def has_next_action(self, rows: Tensor) -> Tensor | None:
        """Return whether each policy's next action is known.

        Args:
            rows: (..., B) rows of the log.

        Returns:
            (..., P, B) bool, or None if all next actions are known.
        """
        return ~(self._arrays[:, None] & self._cut[rows][..., None, :]) if self.arrays.any() else None

    @property
    def dropped_rows(self) -> np.ndarray:
        """(P,) number of logged rows after which a policy's action is unknown."""
        return self.arrays * np.count_nonzero(~self.log.followed)

    def __call__(self, rows: Tensor, draw: int = 0) -> Tensor:
        """Return actions (..., P, B, dim_a) in rows (..., B) of the table of states.

        Args:
            rows: Rows of the table.
            draw: Which sample of stochastic policies' actions to return, modulo `draws`.
        """
        if self._table is not None:
            return self._table[draw % self.draws][rows].transpose(-2, -3)
        flat = rows.reshape(-1).cpu()
        taken = torch.stack([self._act(policy, flat, draw) for policy in self.policies], 1)
        return taken.view(*rows.shape, *taken.shape[1:]).transpose(-2, -3).to(self.log.device)

    def _fill(self, table: Tensor, progress: Callable[[int], Any]) -> Tensor:
        """Fill and return the table (draws, U, P, dim_a); processes share the policies."""
        group = distributed.current()
        own = self.of(group.part(len(self.policies)))
        for rows in torch.arange(table.shape[1], device="cpu").split(_ROWS):
            taken = group.gather(own._act_all(rows))
            table[:, rows] = taken.permute(1, 2, 0, 3)
            progress(len(rows))
        return table

    def _act_all(self, rows: Tensor) -> Tensor:
        """Return actions (P, draws, B, dim_a) in rows (B,) of the table of states."""
        shape = len(self.policies), self.draws, len(rows), self.layout.action_dim
        taken = torch.empty(shape, dtype=torch.float32, device="cpu")
        together = [] if self.layout.kind == "gaussian" else np.flatnonzero(~self.arrays).tolist()
        if together:
            policies, states, source = [self.policies[p] for p in together], self.log.raw_states[rows], self.log.source
            acted = collect(policies, states, source[rows], self.layout, batch_size=current().batch_size)
            taken[together, 0] = self.log.units.normalise_actions(acted)
        for p in sorted(set(range(len(self.policies))) - set(together)):
            for draw in range(self.draws):
                taken[p, draw] = self._act(self.policies[p], rows, draw)
        return taken

    def _act(self, policy: Policy, rows: Tensor, draw: int) -> Tensor:
        """Return actions (B, dim_a) of one policy in rows (B,) of the table."""
        return torch.cat([self._act_on_batch(policy, batch, draw) for batch in rows.split(current().batch_size)])

    def _act_on_batch(self, policy: Policy, rows: Tensor, draw: int) -> Tensor:
        states, source = self.log.raw_states[rows], self.log.source[rows]
        if self.layout.kind != "gaussian":
            return self.log.units.normalise_actions(policy.output(states, source).mean)
        key = np.random.SeedSequence([self.seed, draw, int(rows[0])]).generate_state(1)[0]
        sampled = policy.sample(states, torch.Generator().manual_seed(int(key)), source)
        return self.log.units.normalise_actions(sampled)
