"""Logged transitions in memory: what a policy saw, did, got and saw next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..runtime.checks import check_integer
from ..runtime.warn import warn


@dataclass(frozen=True, eq=False)
class Transitions:
    """N logged steps in order, episode after episode; made by `from_arrays` or `sopr_fast.data.load`.

    Attributes:
        states: (N, dim_s) float32.
        actions: (N, dim_a) float32.
        rewards: (N,) float32.
        next_states: (N, dim_s) float32.
        terminals: (N,) bool: the environment ended here, nothing follows.
        timeouts: (N,) bool: the episode was cut here, its state had a future.
        episodes: (E + 1,) int64: episode e is rows `episodes[e]:episodes[e + 1]`.
        source: (N,) int64: the steps' rows in the data they were read from, where some were dropped.
        source_count: rows of that data; an array of actions has as many.
        log_probs: (N,) float32, log-probabilities of the actions under the policy that logged them, or None.
    """

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_states: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray
    episodes: np.ndarray
    source: np.ndarray
    source_count: int
    log_probs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.states)

    @property
    def initial_states(self) -> np.ndarray:
        """(E, dim_s): the first state of every episode."""
        return self.states[self.episodes[:-1]]

    @classmethod
    def from_arrays(
        cls,
        states: Any,
        actions: Any,
        rewards: Any,
        next_states: Any = None,
        terminals: Any = None,
        timeouts: Any = None,
        log_probs: Any = None,
        *,
        max_episode_steps: int | None = None,
        where: str = "transitions",
        names: dict[str, str] | None = None,
    ) -> Transitions:
        """Checks and converts arrays or tensors, and finds where episodes end.

        An episode ends after a terminal or a timeout and at the end of the data; where no timeout is marked, also
        wherever the next state is not the state of the next row (such rows become timeouts).

        Without `next_states` they are the states of the next rows. Then, as in d4rl's `qlearning_dataset`, the last
        step of a timed-out episode, and of the data unless terminal, is dropped, since nothing tells what came next;
        the step before it becomes the timeout. The next state of a terminal step is its own state. Without `timeouts`
        too, only `max_episode_steps` tells where a time limit cut an episode.

        Args:
            states, actions: (N, dim_s) and (N, dim_a); (N,) actions count as one column.
            rewards, log_probs: (N,) or (N, 1).
            next_states: (N, dim_s).
            terminals, timeouts: (N,) or (N, 1) of bools or of 0 and 1; none by default.
            max_episode_steps: the limit at which episodes were cut, where `next_states` do not tell.
            where: begins every error: the file.
            names: what errors call the arrays, where not by these names.

        Raises:
            TypeError: not numbers, dtype object.
            ValueError: empty, of wrong dimensions or lengths, nan or infinite (the first row).

        Warns:
            UserWarning: nothing tells where a time limit cut episodes.
        """
        checks = _Checks(where, names or {})
        states = checks.table("states", states)
        count = len(states)
        actions = checks.table("actions", actions, count)
        rewards = checks.column("rewards", rewards, count)
        if log_probs is not None:
            log_probs = checks.column("log_probs", log_probs, count)
        terminals = checks.flags("terminals", terminals, count)
        if next_states is None and timeouts is None and max_episode_steps is None:
            warn(
                f"{where}: neither next states nor timeouts: episodes that a time limit cut seem to go on in the next "
                "one's initial state; give sopr_fast.data.load(…, max_episode_steps=…)",
            )
        timeouts = checks.flags("timeouts", timeouts, count) & ~terminals
        if next_states is None:
            if max_episode_steps is not None:
                timeouts |= _at_limit(terminals | timeouts, check_integer("max_episode_steps", max_episode_steps, 1))
            return cls._shifted(states, actions, rewards, terminals, timeouts, log_probs, where)
        next_states = checks.table("next_states", next_states, count)
        if next_states.shape != states.shape:
            raise ValueError(
                f"{where}: {checks.name('next_states')} have {next_states.shape[1]} columns, "
                f"{checks.name('states')} {states.shape[1]}"
            )
        if not timeouts.any():
            timeouts = ~terminals
            timeouts[:-1] &= (next_states[:-1] != states[1:]).any(1)
        source = np.arange(count)
        return cls._ended(states, actions, rewards, next_states, terminals, timeouts, source, count, log_probs)

    @classmethod
    def _shifted(
        cls,
        states: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminals: np.ndarray,
        timeouts: np.ndarray,
        log_probs: np.ndarray | None,
        where: str,
    ) -> Transitions:
        dropped = timeouts.copy()
        dropped[-1] |= not terminals[-1]
        timeouts = np.append(dropped[1:], False) & ~terminals
        kept = np.flatnonzero(~dropped)
        if not len(kept):
            raise ValueError(f"{where}: without next states, no step is left whose next state is known")
        next_states = states[np.where(terminals[kept], kept, np.minimum(kept + 1, len(states) - 1))]
        return cls._ended(
            states[kept],
            actions[kept],
            rewards[kept],
            next_states,
            terminals[kept],
            timeouts[kept],
            kept,
            len(states),
            None if log_probs is None else log_probs[kept],
        )

    @classmethod
    def _ended(
        cls,
        states: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        next_states: np.ndarray,
        terminals: np.ndarray,
        timeouts: np.ndarray,
        source: np.ndarray,
        source_count: int,
        log_probs: np.ndarray | None,
    ) -> Transitions:
        ends = terminals | timeouts
        ends[-1] = True
        episodes = np.concatenate([[0], np.flatnonzero(ends) + 1]).astype(np.int64)
        return cls(
            states, actions, rewards, next_states, terminals, timeouts, episodes, source, source_count, log_probs
        )


def _at_limit(ends: np.ndarray, limit: int) -> np.ndarray:
    """(N,) bool: every `limit`-th row since the last end, unless it is one."""
    starts = np.concatenate([[0], np.flatnonzero(ends[:-1]) + 1])
    steps = np.arange(len(ends)) - np.repeat(starts, np.diff(starts, append=len(ends)))
    return (steps % limit == limit - 1) & ~ends


@dataclass(frozen=True)
class _Checks:
    """Arrays of one source, checked: errors begin with the source and call arrays by its names."""

    where: str
    names: dict[str, str]

    def name(self, key: str) -> str:
        return repr(self.names.get(key, key))

    def table(self, key: str, values: Any, count: int | None = None) -> np.ndarray:
        values = self._numbers(key, values, count)
        if values.ndim == 1 and key == "actions":
            values = values[:, None]
        if values.ndim != 2 or 0 in values.shape:
            raise ValueError(f"{self.where}: {self.name(key)} must have shape (rows, columns), got {values.shape}")
        return self._finite(key, values)

    def column(self, key: str, values: Any, count: int) -> np.ndarray:
        return self._finite(key, self._one_column(key, self._numbers(key, values, count)))

    def flags(self, key: str, values: Any, count: int) -> np.ndarray:
        if values is None:
            return np.zeros(count, bool)
        values = self._one_column(key, self._numbers(key, values, count))
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"{self.where}: {self.name(key)} must be 0 or 1, got {values[row]} at row {row}")
        return values.astype(bool)

    def _numbers(self, key: str, values: Any, count: int | None) -> np.ndarray:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            values = (values if values.dtype.itemsize > 2 else values.float()).numpy()
        try:
            values = np.asarray(values)
        except ValueError as error:
            raise ValueError(f"{self.where}: {self.name(key)} is no array: {error}") from error
        if values.dtype.kind not in "fiub":
            raise TypeError(f"{self.where}: {self.name(key)} must be numbers, got dtype {values.dtype}")
        if values.ndim == 0 or len(values) == 0:
            raise ValueError(f"{self.where}: {self.name(key)} is empty: shape {values.shape}")
        if count is not None and len(values) != count:
            raise ValueError(
                f"{self.where}: {self.name(key)} has {len(values)} rows, {self.name('states')} has {count}"
            )
        return values

    def _one_column(self, key: str, values: np.ndarray) -> np.ndarray:
        if values.shape not in ((len(values),), (len(values), 1)):
            raise ValueError(f"{self.where}: {self.name(key)} must have shape (rows,), got {values.shape}")
        return values.reshape(-1)

    def _finite(self, key: str, values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(values, np.float32)
        finite = np.isfinite(values).reshape(len(values), -1).all(1)
        if not finite.all():
            row = int(np.argmin(finite))
            raise ValueError(f"{self.where}: {self.name(key)} is not finite (as float32) at row {row}")
        return values
