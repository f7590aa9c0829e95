"""Known returns with their standard errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..inputs.returns import (
    Returns,
    check_returns,
    in_order,
    is_source,
    of_rollouts,
    read_returns,
    with_single_rollouts,
)


def read_known_returns(
    returns: Any, names: list[str], return_errors: Any = None, rollouts: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the returns of policies and the standard errors of these returns.

    Args:
        returns: (M,) numbers, a mapping from name to number, a file or a data frame (see
            `sopr_fast.load_returns`); or for each policy the returns of its rollouts, as many as it has.
        names: Names of the M policies.
        return_errors: Standard errors of the returns, one number, (M,) or by name; with `rollouts`, standard
            deviations over a policy's rollouts. None for those that a file or data frame has.
        rollouts: Number of rollouts behind each return, one number, (M,) or by name.

    Returns:
        (M,) float64 returns and (M,) float64 standard errors, 0 where unknown. A single rollout among policies with
        several has their pooled standard deviation.

    Raises:
        TypeError: The returns are not numbers.
        ValueError: Returns are missing or not finite, or are preferences; an error is negative; returns are those of
            rollouts, and `return_errors` or `rollouts` are given too.
    """
    if is_source(returns):
        returns = read_returns(returns, names)
    if isinstance(returns, Returns) and return_errors is None and rollouts is None:
        values = check_returns(returns, names)
        return values, _numbers("return_errors", [returns.errors.get(name, 0.0) for name in names], names)
    ordered = in_order("returns", returns, names)
    lists = _rollouts(ordered, names)
    if lists is not None:
        if not hasattr(returns, "keys") and _are_preferences(lists):
            raise ValueError(
                "returns hold preferences between policies, which have no unit that regret and intervals could be "
                "measured in; pass returns or ranks, or learn from preferences with sopr_fast.fit(preferences=...)"
            )
        if return_errors is not None or rollouts is not None:
            raise ValueError(
                "returns hold the returns of rollouts, which say how uncertain they are; leave out return_errors and "
                "rollouts"
            )
        for name, own in zip(names, lists, strict=True):
            if own.ndim != 1 or not len(own) or not np.isfinite(own).all():
                raise ValueError(f"the rollouts of policy {name!r} must be one or more finite returns")
        means, errors = np.array([of_rollouts(own) for own in lists]).T
        return means, with_single_rollouts(errors, np.array([len(own) for own in lists]))
    values = check_returns(ordered, names)
    if return_errors is None:
        if rollouts is not None:
            raise ValueError(
                "rollouts need return_errors: pass the standard deviations over each policy's rollouts; where a table "
                "has them in return_std, pass sopr_fast.load_returns(table, names, rollouts=...) as returns"
            )
        return values, np.zeros(len(names))
    errors = _numbers("return_errors", return_errors, names)
    if rollouts is not None:
        counts = _numbers("rollouts", rollouts, names)
        if (counts < 1).any():
            raise ValueError(f"rollouts of policy {names[int(np.argmin(counts))]!r} must be at least 1")
        errors = with_single_rollouts(errors / np.sqrt(counts), counts)
    return values, errors


def are_ranks(returns: np.ndarray) -> bool:
    """Return whether returns are the numbers 1 to M, or 0 to M - 1, in some order."""
    count = len(returns)
    ordered = np.sort(returns)
    return count > 2 and any(np.array_equal(ordered, first + np.arange(count)) for first in (0, 1))


def _are_preferences(lists: list[np.ndarray]) -> bool:
    if any(own.shape != (len(lists),) for own in lists):
        return False
    return bool(all(np.isin(own[np.isfinite(own)], (0.0, 0.5, 1.0)).all() for own in lists))


def _rollouts(returns: Any, names: list[str]) -> list[np.ndarray] | None:
    """Return each policy's rollouts, or None where `returns` hold one number for each policy."""
    if not isinstance(returns, Iterable) or getattr(returns, "ndim", 1) == 0 or not any(map(np.ndim, returns)):
        return None
    policies = list(returns)
    if len(policies) != len(names):
        raise ValueError(f"returns hold the rollouts of {len(policies)} policies, expected {len(names)}")
    lists = []
    for name, own in zip(names, policies, strict=True):
        try:
            lists.append(np.asarray(own, np.float64))
        except (TypeError, ValueError) as error:
            raise TypeError(f"the rollouts of policy {name!r} must be numbers: {error}") from error
    return lists


def _numbers(what: str, values: Any, names: list[str]) -> np.ndarray:
    numbers = np.asarray(in_order(what, values, names), np.float64)
    if numbers.ndim == 0:
        numbers = np.full(len(names), float(numbers))
    if numbers.shape != (len(names),):
        raise ValueError(f"{what} must be one number or have shape ({len(names)},), got {numbers.shape}")
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        i = int(np.argmin(np.isfinite(numbers) & (numbers >= 0)))
        raise ValueError(f"{what} of policy {names[i]!r} must be finite and not negative, got {numbers[i]}")
    return numbers
