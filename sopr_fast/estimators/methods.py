"""Methods of `evaluate` and `select` by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from ..runtime.text import suggest

if TYPE_CHECKING:
    from .estimator import Estimator

METHODS = (
    "GaussianProcess(Simulator)",
    "Simulator",
    "GaussianProcess",
    "NearestPolicy",
    "SOPR",
    "BehaviourQ",
    "FQE",
    "ImportanceWeighting",
    "DoublyRobust",
    "DualDICE",
)
DEFAULT_METHODS = METHODS[:5]

MethodsLike: TypeAlias = "Mapping[str, str | Estimator] | Sequence[str | Estimator] | str | Estimator | None"
"""Names of methods or estimators, with or without labels; None for the default ones."""


def find_method(name: str) -> str:
    """Return the name of a method as in `METHODS`, whatever its case, spaces and hyphens, or raise ValueError."""
    for method in METHODS:
        if re.sub(r"[\W_]+", "", method).lower() == re.sub(r"[\W_]+", "", name).lower():
            return method
    raise ValueError(f"no method {name!r}{suggest(name, METHODS)}; choose from {', '.join(METHODS)}")


def make_method(name: str) -> Estimator:
    """Return the estimator of a name, which is its class, and that of its mean in parentheses; see `find_method`."""
    kind, _, mean = find_method(name).rstrip(")").partition("(")
    method = getattr(import_module(__package__), kind)  # here, as `--help` shows the names without torch
    return method(mean=make_method(mean)) if mean else method()


def read_methods(methods: MethodsLike) -> dict[str, Estimator]:
    """Return estimators by label, or raise ValueError (an unknown name, a label used twice, no method) or TypeError."""
    if methods is None:
        methods = DEFAULT_METHODS
    if not isinstance(methods, Mapping | Sequence) or isinstance(methods, str):
        methods = [methods]
    items = methods.items() if isinstance(methods, Mapping) else [(None, method) for method in methods]
    chosen: dict[str, Estimator] = {}
    for label, method in items:
        if isinstance(method, str):
            method = make_method(method)
        if isinstance(method, type) or not hasattr(method, "estimate"):
            raise TypeError(f"a method must be a name, or an estimator such as FQE(), got {method!r}")
        label = label or method.name
        if label in chosen:
            raise ValueError(f"two methods are called {label!r}; label them with a mapping")
        chosen[label] = method
    if not chosen:
        raise ValueError("no methods given")
    return chosen
