"""Known returns with their standard errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..inputs.logs.keys import list_names
from ..inputs.returns import (
    Returns,
    check_index,
    is_missing,
    is_source,
    of_rollouts,
    read_returns,
    with_single_rollouts,
)


def read_known_returns(returns: Any, names: list[str], ordered: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the returns of policies and the standard errors of these returns.

    Args:
        returns: Mapping or series from name to a number or to the returns of rollouts; a file, folder or data frame,
            see `sopr_fast.load_returns`; the same for each of the `ordered` policies in order; or None for none.
        names: Names of all P policies.
        ordered: Names of the policies whose returns may be given in order.

    Returns:
        (P,) float64 returns, NaN where unknown, and (P,) float64 standard errors, 0 where unknown. A single rollout
        among policies with several has their pooled standard deviation.

    Raises:
        TypeError: A return is no number.
        ValueError: No policy has a return although some are given, or a return or an error is not finite.
    """
    values, errors = np.full(len(names), np.nan), np.zeros(len(names))
    if returns is None:
        return values, errors
    by_name = _by_name(returns, names, ordered)
    counts = np.zeros(len(names), int)
    for i, name in enumerate(names):
        if name in by_name and not is_missing(own := by_name[name]):
            values[i], errors[i], counts[i] = _read(name, own)
    if not np.isfinite(values).any():
        raise ValueError(
            f"no policy has a return: returns are given of {list_names([str(name) for name in by_name])}, the policies "
            f"are {list_names(names)}"
        )
    if (counts > 1).any():
        errors = np.where(np.isfinite(values), with_single_rollouts(errors, counts), 0.0)
    for name, error in getattr(by_name, "errors", {}).items():
        if name in names:
            errors[names.index(name)] = error
    if not (np.isfinite(errors) & (errors >= 0)).all():
        i = int(np.argmin(np.isfinite(errors) & (errors >= 0)))
        raise ValueError(f"the standard error of policy {names[i]!r} must be finite and not negative, got {errors[i]}")
    return values, errors


def _by_name(returns: Any, names: list[str], ordered: list[str]) -> Mapping[str, Any]:
    if isinstance(returns, Returns):
        return returns
    if is_source(returns):
        return read_returns(returns, names)
    if hasattr(returns, "keys"):
        keys = list(returns.keys())
        if all(isinstance(key, str) for key in keys):
            return dict(zip(keys, (returns[key] for key in keys), strict=True))
        check_index("returns", keys)
        returns = returns.to_numpy()
    values = list(returns)
    if len(values) != len(ordered):
        raise ValueError(
            f"returns are {len(values)} in order, but there are {len(ordered)} policies; map names to returns"
        )
    return dict(zip(ordered, values, strict=True))


def _read(name: str, own: Any) -> tuple[float, float, int]:
    """Return mean, standard error, and number of rollouts, 0 if it is unknown."""
    try:
        numbers = np.asarray(own, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the return of policy {name!r} must be a number, or the returns of its rollouts") from error
    if numbers.ndim > 1 or not numbers.size or not np.isfinite(numbers).all():
        raise ValueError(f"the return of policy {name!r} must be finite, or finite returns of its rollouts, got {own}")
    if numbers.ndim == 0:
        return float(numbers), 0.0, 0
    return *of_rollouts(numbers), len(numbers)
