"""Policies and the log that they are valued on, and how differently the policies act."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..estimators.action_distance import act_on_log, mutual_distances
from ..estimators.estimator import data_rows, read_rows
from ..inputs.logs import Transitions, load_log
from ..inputs.policies import Policies, Policy, collect_shared, doubtful_answers, facts
from .measured import Measured

if TYPE_CHECKING:
    import pandas

FEWEST_KNOWN = 6  # known policies that show how far apart policies are, and how far predictions err
_ROWS = 4096  # in which policies act at once


@dataclass(frozen=True, eq=False)
class Compared:
    """P policies that act differently, and a log, read once."""

    policies: list[Policy]
    log: Any  # transitions; or logged states, where the log holds no rewards
    distances: np.ndarray  # (P, P) float64 action distances (Eq. 3 of the paper) in the compared states
    states: int  # number of compared states, at most 4,096 that are evenly spaced
    facts: list[str]  # what a reader should see of the policies next to the log
    discrete: bool  # whether actions are

    @property
    def names(self) -> list[str]:
        """P names."""
        return [policy.name for policy in self.policies]

    @property
    def has_rewards(self) -> bool:
        """Whether the log holds rewards."""
        return isinstance(self.log, Transitions)

    @property
    def is_of_single_steps(self) -> bool:
        """Whether the log holds rewards and each of its episodes has one step."""
        return isinstance(self.log, Transitions) and len(self.log.episodes) - 1 == len(self.log)

    @property
    def is_bandit(self) -> bool:
        """Whether the log is of single steps, with probabilities of its discrete actions."""
        return self.is_of_single_steps and self.log.log_probs is not None and self.discrete


def read(
    policies: Policies, log: Any, returns: pandas.DataFrame, incumbent: str | None = None
) -> tuple[Compared, Measured]:
    """Read the log and ask policies for their actions; return those that act differently, and what is known of all."""
    log = load_log(log)
    adapted, total = policies.for_log(data_rows(log)), len(log)
    rows, states, source, layout, columns = act_on_log(adapted, log)
    found = facts(adapted, layout, columns, states.numpy(), getattr(log, "actions", None), rows)
    found += doubtful_answers(adapted, torch.from_numpy(columns), states, source, layout)
    first = _first_alike([columns])
    for group in [np.flatnonzero(first == i) for i in np.unique(first)]:
        if len(group) > 1 and total > len(rows):
            own, parts = [adapted[i] for i in group], np.array_split(np.arange(total), -(-total // _ROWS))
            everywhere = (collect_shared(own, *read_rows(log, part), layout).numpy() for part in parts)
            first[group] = group[_first_alike(everywhere)]
    kept = np.unique(first)
    distances, is_discrete = mutual_distances(columns)[np.ix_(kept, kept)], layout.kind == "discrete"
    compared = Compared([adapted[i] for i in kept], log, distances, len(states), found, is_discrete)
    noise = float(compared.log.rewards.std()) if compared.is_bandit else 0.0
    return compared, Measured([*policies], first, returns, incumbent, total, noise)


def _first_alike(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Return the index (P,) of the first policy with the same columns, of which each part is (P, states, width)."""
    digests: list[Any] = []
    for columns in parts:
        digests = digests or [hashlib.sha256() for _ in columns]
        for digest, own in zip(digests, columns, strict=True):
            digest.update((own + np.float32(0)).tobytes())  # -0 becomes 0
    firsts: dict[bytes, int] = {}
    return np.array([firsts.setdefault(digest.digest(), i) for i, digest in enumerate(digests)])


def distance_ratios(distances: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the distance (P,) to the nearest other known policy; NaN without one.

    The unit is the median between two known policies; if these are fewer than six, that between any two.
    """
    among = known if len(known) >= FEWEST_KNOWN else np.arange(len(distances))
    between = distances[np.ix_(among, among)][np.triu_indices(len(among), 1)]
    unit = float(np.median(between)) if between.any() else 1.0
    apart = distances[:, known].copy()
    apart[known, np.arange(len(known))] = np.inf
    nearest = apart.min(1, initial=np.inf)
    return np.where(np.isfinite(nearest), nearest, np.nan) / (unit or 1.0)


def possible_returns(log: Transitions) -> tuple[float, float]:
    """Return the least and the largest undiscounted return that the logged rewards and episode lengths allow.

    If no episode ends in a terminal, or all are as long as the time limit, no return has fewer steps than the longest.
    The reward of a terminal is earned once, at the end; any other one in every step.
    """
    last, others = log.rewards[log.terminals], log.rewards[~log.terminals]
    lengths = np.diff(log.episodes)
    limit = log.limit + (log.source_count > len(log))  # last steps of cut episodes may have been dropped
    may_end = bool((lengths < limit).any())
    shortest = 1.0 if len(last) and may_end else float(lengths.max())
    returns = []
    if log.timeouts.any() or not len(last) or (len(others) and may_end and np.isfinite(limit)):
        returns += _sums(others, shortest, limit)
    if len(last):
        before = _sums(others, shortest - 1, limit - 1) if len(others) else [0.0]
        returns += [total + float(end) for total in before for end in (last.min(), last.max())]
    return min(returns), max(returns)


def _sums(rewards: np.ndarray, *steps: float) -> list[float]:
    """Return the sums of the least and of the largest reward over numbers of steps, which may be infinite."""
    extremes = float(rewards.min()), float(rewards.max())
    return [reward * count if reward else 0.0 for reward in extremes for count in steps]
