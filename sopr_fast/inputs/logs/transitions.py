"""Logged transitions in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...runtime.arrays import fill_masked
from ...runtime.checks import check_integer
from ...runtime.warn import warn
from .arrays import table_shape, to_array, warn_of_equal_rows, warn_of_rounding
from .keys import MIXED_ENDS

_NEARLY_ALL = 0.9


@dataclass(frozen=True, eq=False)
class Transitions:
    """N logged steps in order, episode after episode; made by `from_arrays` or `sopr_fast.load_log`.

    Attributes:
        states: (N, dim_s) float32.
        actions: (N, dim_a) float32.
        rewards: (N,) float32.
        next_states: (N, dim_s) float32.
        terminals: (N,) bool; the environment ended after this step.
        timeouts: (N,) bool; the episode was cut after this step, whose next state had a future.
        episodes: (E + 1,) int64; episode e is rows `episodes[e]:episodes[e + 1]`.
        source: (N,) int64; rows of the steps in the user's data, of which some may have been dropped.
        source_count: Number of rows of the user's data, which an array of actions must have.
        log_probs: (N,) float32 log-probabilities of the actions under the policy that logged them, or None.
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
        """First state of every episode, (E, dim_s)."""
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
        """Check and convert arrays or tensors, and find where episodes end.

        An episode ends after a terminal step, after a timeout and at the end of the data. It also ends wherever the
        next state differs from the state of the next row, unless timeouts are marked and most rows differ; such rows
        become timeouts.

        Without `next_states`, the next state of a step is the state of the next row, and that of a terminal step its
        own state. As in d4rl's `qlearning_dataset`, the last step of a timed-out episode is then dropped, since its
        next state is unknown, and so is the last step of the data unless it is terminal; the step before becomes the
        timeout. If timeouts are missing too, `max_episode_steps` is needed to find where a time limit cut episodes.
        With `next_states`, timed-out steps are dropped in the same way if their next states are the first states of the
        next episodes, as environments that reset themselves return them.

        Tables of shape (N, 1, columns), as replay buffers of one environment have them, count as (N, columns).

        Args:
            states: (N, dim_s).
            actions: (N, dim_a); (N,) counts as one column.
            rewards: (N,) or (N, 1).
            next_states: (N, dim_s).
            terminals: (N,) or (N, 1) of bools or of 0 and 1; none by default.
            timeouts: As `terminals`.
            log_probs: (N,) or (N, 1) log-probabilities of the actions under the policy that logged them.
            max_episode_steps: Time limit that cut the episodes, if nothing else shows where it did.
            where: Beginning of error messages, such as the file's path.
            names: Names of the arrays in error messages, if they differ from those of the arguments. Terminals named
                `done` or `dones` may include timeouts: steps that `timeouts` marks are not terminal.

        Raises:
            TypeError: An array does not hold numbers.
            ValueError: An array is empty, of wrong shape or length, or not finite; names the first row. Masked values
                count as not finite.

        Warns:
            UserWarning: Nothing shows where a time limit cut episodes; `done` may include timeouts; next states after
                timeouts are those of the next episode; rows do not follow each other, or some do not beside marked
                timeouts; or more than half of the states are equal, or a column of them loses its differences in
                float32.
        """
        checks = _Checks(where, names or {})
        states = checks.table("states", states)
        count = len(states)
        warn_of_equal_rows(states, f"{where}: ")
        actions = checks.table("actions", actions, count)
        rewards = checks.column("rewards", rewards, count)
        if log_probs is not None:
            log_probs = checks.column("log_probs", log_probs, count)
        mixed = terminals is not None and (names or {}).get("terminals") in MIXED_ENDS
        if mixed and timeouts is None:
            warn(
                f"{where}: {checks.name('terminals')} are taken as terminals; if a time limit cut episodes, name the "
                "steps it cut 'timeouts'"
            )
        elif next_states is None and timeouts is None and max_episode_steps is None:
            warn(
                f"{where}: neither next states nor timeouts: the last state of an episode that a time limit cut seems "
                "to lead to the first of the next episode; pass sopr_fast.load_log(…, max_episode_steps=…)"
            )
        terminals = checks.flags("terminals", terminals, count)
        timeouts = checks.flags("timeouts", timeouts, count)
        if mixed:
            terminals &= ~timeouts
        timeouts &= ~terminals
        limit = None if max_episode_steps is None else check_integer("max_episode_steps", max_episode_steps, 1)
        if next_states is None:
            if limit is not None:
                timeouts |= _at_limit(terminals | timeouts, limit)
            return cls._shifted(states, actions, rewards, terminals, timeouts, log_probs, where)
        next_states = checks.table("next_states", next_states, count)
        if next_states.shape != states.shape:
            raise ValueError(
                f"{where}: {checks.name('next_states')} have {next_states.shape[1]} columns, "
                f"{checks.name('states')} {states.shape[1]}"
            )
        jumps = (next_states[:-1] != states[1:]).any(1)
        goes_on = ~(terminals | timeouts)[:-1]
        unmarked = np.flatnonzero(jumps & goes_on)
        if len(unmarked) > goes_on.sum() / 2:
            warn(
                f"{where}: rows do not follow each other: after most steps, {checks.name('next_states')} are not the "
                f"{checks.name('states')} of the next row, as in a shuffled log or one of several environments in "
                "turn; initial states, episodes' returns and importance weights are wrong then: sort the rows by "
                "episode and step"
            )
        elif timeouts.any() and len(unmarked):
            warn(
                f"{where}: after {len(unmarked):,} rows, such as row {unmarked[0]}, the next row does not follow, "
                "though nothing marks an end there: these rows are taken as timeouts; mark them if that is right"
            )
            timeouts[unmarked] = True
        if not timeouts.any():
            timeouts = ~terminals
            timeouts[:-1] &= jumps
        if limit is not None:
            timeouts |= _at_limit(terminals | timeouts, limit)
        source = np.arange(count)
        log = cls._split(states, actions, rewards, next_states, terminals, timeouts, source, count, log_probs)
        return log._without_resets(where)

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
        """Return transitions whose next states are the states of the next rows."""
        dropped = timeouts.copy()
        dropped[-1] |= not terminals[-1]
        rows = np.arange(len(states))
        next_states = states[np.where(terminals, rows, np.minimum(rows + 1, len(states) - 1))]
        log = cls._split(states, actions, rewards, next_states, terminals, timeouts, rows, len(states), log_probs)
        return log._without(dropped, where)

    def _without_resets(self, where: str) -> Transitions:
        """Return the transitions without timed-out steps whose next states begin the next episodes."""
        cut, following = self.timeouts[:-1], self.next_states[:-1]
        resets = cut & (following == self.states[1:]).all(1) & (following != self.states[:-1]).any(1)
        if resets.sum() <= _NEARLY_ALL * cut.sum():
            return self
        warn(
            f"{where}: at {resets.sum():,} of {cut.sum():,} time limits, the next state is the first state of the next "
            "episode, as environments that reset themselves return it; these steps are dropped: replace it by the "
            "episode's last state, or leave out the time limits if the environment went on"
        )
        return self._without(np.append(resets, self.timeouts[-1]), where)

    def _without(self, dropped: np.ndarray, where: str) -> Transitions:
        """Return the transitions without steps, `dropped` (N,) bool; the steps before them become timeouts."""
        timeouts = (self.timeouts | np.append(dropped[1:], False)) & ~self.terminals
        kept = np.flatnonzero(~dropped)
        if not len(kept):
            raise ValueError(f"{where}: the next state of no step is known; add next states")
        return self._split(
            self.states[kept],
            self.actions[kept],
            self.rewards[kept],
            self.next_states[kept],
            self.terminals[kept],
            timeouts[kept],
            self.source[kept],
            self.source_count,
            None if self.log_probs is None else self.log_probs[kept],
        )

    @classmethod
    def _split(
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
        """Return transitions split into episodes after terminals and timeouts."""
        ends = terminals | timeouts
        ends[-1] = True
        episodes = np.concatenate([[0], np.flatnonzero(ends) + 1]).astype(np.int64)
        return cls(
            states, actions, rewards, next_states, terminals, timeouts, episodes, source, source_count, log_probs
        )


def _at_limit(ends: np.ndarray, limit: int) -> np.ndarray:
    """Return (N,) bool that marks every `limit`-th row since the last end, unless it is an end itself."""
    starts = np.concatenate([[0], np.flatnonzero(ends[:-1]) + 1])
    steps = np.arange(len(ends)) - np.repeat(starts, np.diff(starts, append=len(ends)))
    return (steps % limit == limit - 1) & ~ends


@dataclass(frozen=True)
class _Checks:
    """Checks of the arrays of one source.

    Attributes:
        where: Beginning of error messages.
        names: Argument of `Transitions.from_arrays` → name of the array in error messages.
    """

    where: str
    names: dict[str, str]

    def name(self, key: str) -> str:
        return repr(self.names.get(key, key))

    def table(self, key: str, values: Any, count: int | None = None) -> np.ndarray:
        values = self._numbers(key, values, count)
        if values.ndim == 1 and key == "actions":
            values = values[:, None]
        what = f"{self.where}: {self.name(key)} must have shape (rows, columns)"
        shape = table_shape(values.shape, what)
        if 0 in shape:
            raise ValueError(f"{what}, got {values.shape}")
        return self._finite(key, values.reshape(shape))

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
            values = to_array(values, f"{self.where}: {self.name(key)}: ")
        try:
            values = np.asarray(fill_masked(values))
        except (OverflowError, TypeError, ValueError) as error:
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
        exact = values
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(exact, np.float32)
        finite = np.isfinite(values).reshape(len(values), -1).all(1)
        if not finite.all():
            row = int(np.argmin(finite))
            raise ValueError(f"{self.where}: {self.name(key)} is not finite (as float32) at row {row}")
        if key == "states":
            warn_of_rounding(values, lambda some: exact[some], exact.dtype, f"{self.where}: ")
        return values
