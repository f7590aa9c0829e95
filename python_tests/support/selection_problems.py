"""A linear problem whose values are known, and stand-ins for methods, that tests of evaluate and select share."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from support.mdps import Linear, LinearGain

from sopr_fast.estimators import Estimates
from sopr_fast.selection import select

DISCOUNT = 0.9


def log(episodes: int = 30, length: int = 20):
    """Return transitions of a noisy policy."""
    return Linear.small().log(np.array([0.0, -0.3]), 0.5, episodes, length, seed=0)


def gains(count: int = 14, *, first: int = 0) -> dict[str, LinearGain]:
    """Return policies of two families, their gains drawn with seeds `first`, `first` + 1, ..."""
    policies = {}
    for i in range(first, first + count):
        family, mean = ("left", -0.6) if i % 2 else ("right", 0.2)
        noise = np.random.default_rng([i, 5]).standard_normal(2)
        policies[f"{family}-{i:02d}"] = LinearGain(np.array([mean, -0.4]) + 0.25 * noise)
    return policies


def true_values(policies: dict[str, LinearGain]) -> dict[str, float]:
    """Return discounted returns from the corners of a square."""
    starts = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    return {name: Linear.small().value(policy.gain, DISCOUNT, starts) for name, policy in policies.items()}


@dataclass
class Scripted:
    """A method that says what it is told, and remembers whom it was asked about.

    Attributes:
        says: Value of every policy, by name.
        supervised: Whether it pretends to learn from known returns.
        calls: For every call the names of the policies asked about, and of those known.
    """

    says: dict[str, float]
    supervised: bool = False
    needs_rewards: bool = True
    calls: list[tuple[list[str], list[str]]] = field(default_factory=list)

    name, mean = "Simulator", None

    def prepare(self, request, values=None):
        def value(tested, known, returns, errors):
            policies, learned = ([request.policies[i] for i in part] for part in (tested, known))
            return self.estimate(policies, request.log, known=learned)

        return value

    def estimate(self, policies, log, *, known=(), returns=None, **_):
        names = [policy.name for policy in policies]
        self.calls.append((names, [policy.name for policy in known or ()]))
        return Estimates(names, np.array([self.says[name] for name in names], float), np.full(len(names), np.nan))

    def __repr__(self) -> str:
        return f"Scripted({self.says})"


@dataclass
class Failing:
    """A method that raises."""

    error: Exception
    name, mean = "Failing", None
    supervised = False
    needs_rewards = True

    def estimate(self, policies, log, **_):
        raise self.error


KNOWN, CANDIDATES = gains(12), gains(4, first=20)
TRUTH = true_values(KNOWN) | true_values(CANDIDATES)
RETURNS = {name: TRUTH[name] for name in KNOWN}
BEST = max(RETURNS, key=RETURNS.get)


def simulator(**changes):
    """Return a simulator that errs a little, or as told."""
    random = np.random.default_rng(0)
    return Scripted({name: value + 0.02 * random.standard_normal() for name, value in TRUTH.items()} | changes)


def choose(candidates=CANDIDATES, known=KNOWN, returns=RETURNS, **options):
    """Return a selection among known policies and candidates."""
    return select(known | candidates, log(), returns, **{"simulator": simulator(), **options})
