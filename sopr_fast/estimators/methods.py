"""Methods of `evaluate` and `select` by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

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
"""One method or several, by name or as estimators, with or without labels; None for the default ones."""


def make_method(name: str) -> Estimator:
    """Return the estimator of a name in `METHODS`, which is its class, and that of its mean; ValueError for others."""
    if name not in METHODS:
        raise ValueError(f"no method {name!r}{suggest(name, METHODS)}; choose from {', '.join(METHODS)}")
    kind, _, mean = name.rstrip(")").partition("(")
    method = getattr(import_module(__package__), kind)  # here, as `--help` shows the names without torch
    return method(mean=make_method(mean)) if mean else method()


def read_methods(methods: MethodsLike) -> dict[str, Estimator]:
    """Return estimators by label, or raise ValueError (an unknown name, a label used twice, no method) or TypeError."""
    given: Any = DEFAULT_METHODS if methods is None else methods
    if isinstance(given, str) or hasattr(given, "estimate"):
        given = [given]
    items = given.items() if isinstance(given, Mapping) else [(None, method) for method in given]
    chosen: dict[str, Estimator] = {}
    for label, method in items:
        if isinstance(method, str):
            method = make_method(method)
        if isinstance(method, type) or not hasattr(method, "estimate"):
            raise TypeError(f"a method must be a name, or an estimator such as FQE(), got {method!r}")
        label = label or method.name
        if label in chosen:
            raise ValueError(f"two methods are called {label!r}: name it once, or label both, {{label: method}}")
        chosen[label] = method
    if not chosen:
        raise ValueError(f"no methods given: name some of {', '.join(METHODS)}")
    return chosen
