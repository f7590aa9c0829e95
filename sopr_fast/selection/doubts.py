"""What the known returns leave open, in words."""

from __future__ import annotations

import numpy as np

from ..results.numbers import Numbers, number
from .compared import FEWEST_KNOWN
from .predictions import Predictions

_LEAST_ORDER = 0.8  # rank correlation of a method with known returns
_SURPRISE = 3.0  # standard errors between a known return and its unbiased estimate
_OTHER_SCALE = 5  # times larger or smaller values, from which returns may be means, or discounted
_FEWEST_SIZES = 3  # known returns, whose sizes and spread say so


def doubts(told: Predictions) -> list[str]:
    """Return what the known returns leave open, as sentences without full stops."""
    found = [*_impossible_returns(told), *_unproven(told)]
    low, high = told.bounds
    if low == high:
        equal = f"costs {number(-low)}" if told.are_costs else f"returns {number(low)}"
        what = "costs" if told.are_costs else "rewards"
        found.insert(0, f"By the logged {what} every policy {equal}: check that the log's {what} are the right ones")
    return found


def _impossible_returns(told: Predictions) -> list[str]:
    """Return a note on known returns that exceed the bounds; none if there are none."""
    (low, high), outside = told.bounds, np.flatnonzero(told.impossible)
    if not len(outside):
        return []
    name, value, shown = told.names[outside[0]], told.shown[0, outside[0]], Numbers(told.shown[0])
    rewards = "rewards"
    if told.are_costs:
        low, high, rewards = -high, -low, "costs"
    side, most, bound = ("below", "lowest", low) if value < low else ("above", "highest", high)
    others = f" (others out of range: {len(outside) - 1})" if len(outside) > 1 else ""
    return [
        f"The {told.unit} of {name}, {shown(value)}, is {side} {shown(bound)}, the {most} that the logged {rewards} "
        f"and episode lengths allow{others}: check that {told.unit}s and log are of one environment, with the same "
        f"{rewards}; if they are, the log lacks what this policy does"
    ]


def _unproven(told: Predictions) -> list[str]:
    """Return notes on how badly known returns agree with the predictions."""
    count, method = int(told.known.sum()), told.method
    if not count:
        return [f"No {told.unit} is known: the order is by {method}"]
    if told.known.all() and not told.is_reversed:
        return []
    if told.covariance is not None:
        return _other_units(told) or _surprises(told)
    if count < FEWEST_KNOWN:
        returns = f"{told.unit} is" if count == 1 else f"{told.unit}s are"
        basis = f"{method} and on assumptions" if method else "assumptions"
        few = f"Only {count} {returns} known: predictions and intervals rest on {basis}"
        return [few, *_other_units(told)]
    found = []
    if told.method_order < _LEAST_ORDER:
        order = f"Values by {method} order the known policies with a rank correlation of {told.method_order:.2f}"
        found.append(f"{order}: {_remedy(told)}")
    if not told.is_tested:
        found.append(f"The known {told.unit}s do not predict each other, so the verdict does not rest on predictions")
    return found + _other_units(told)


def _remedy(told: Predictions) -> str:
    """Return what to do if a method orders the known policies badly."""
    if told.is_reversed:
        if told.are_costs:
            return "check that less is better of `costs` and `cost`, and deploy nothing before"
        return "if returns or logged rewards are costs, name them so (`costs`, `cost`), and deploy nothing before"
    if told.method == "Simulator":
        return "train it longer (updates=20000); if that does not help, these policies leave the log"
    return "do not rely on its values"


def _surprises(told: Predictions) -> list[str]:
    """Return a note on the known return that unbiased values contradict most; none if they do not."""
    assert told.values is not None and told.covariance is not None
    errors = np.hypot(np.sqrt(np.diagonal(told.covariance)), told.return_errors)
    gaps = np.nan_to_num(np.abs(told.returns - told.values) / errors)
    most = int(gaps.argmax())
    if gaps[most] < _SURPRISE:
        return []
    return [
        f"The {told.unit} of {told.names[most]} is {gaps[most]:.1f} standard errors away from {told.method}: check "
        "the log's probabilities, and whether they are of the same users"
    ]


def _other_units(told: Predictions) -> list[str]:
    """Return a note on known returns that are far smaller or larger than the values; none if they are not."""
    if told.values is None or told.known.sum() < _FEWEST_SIZES:
        return []
    returns, values = told.returns[told.known], told.values[told.known]
    sizes = [(np.median(np.abs(each)), np.std(each)) for each in (returns, values)]
    ratios = [measured / simulated if simulated else 1.0 for measured, simulated in zip(*sizes, strict=True)]
    if min(ratios) <= _OTHER_SCALE and max(ratios) >= 1 / _OTHER_SCALE:
        return []
    ratio = np.format_float_positional(ratios[0], precision=2, fractional=False, trim="-")
    return [
        f"The known {told.unit}s are {ratio} times the values by {told.method}: give sums of an episode's "
        f"{'costs' if told.are_costs else 'rewards'} in the units of the log, neither means nor discounted sums"
    ]
