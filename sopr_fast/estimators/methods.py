"""Methods of `evaluate` and `select` by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from ..runtime.text import suggest
from ..sopr.config import Config

if TYPE_CHECKING:
    from .estimator import Estimator

SELECT = "select"  # the process of `select`, whose mean follows the values of the estimator under this label
_CLASSES = {
    SELECT: "Simulator",
    "simulator": "Simulator",
    "Gaussian process": "GaussianProcess",
    "nearest policy": "NearestPolicy",
    "SOPR-T": "SOPR",
    "SARSA critic": "BehaviourQ",
    "FQE": "FQE",
    "importance weighting": "ImportanceWeighting",
    "doubly robust": "DoublyRobust",
    "DualDICE": "DualDICE",
}

METHODS = tuple(_CLASSES)
DEFAULT_METHODS = METHODS[:5]

MethodsLike: TypeAlias = "Mapping[str, str | Estimator] | Sequence[str | Estimator] | str | Estimator | None"
"""Names of methods or estimators, with or without labels; None for the default ones."""


def find_method(name: str, methods: Sequence[str] = METHODS) -> str:
    """Return the name of a method as in `methods`, whatever its case, spaces and hyphens, or raise ValueError."""
    for method in methods:
        if re.sub(r"[\W_]+", "", method).lower() == re.sub(r"[\W_]+", "", name).lower():
            return method
    raise ValueError(f"no method {name!r}{suggest(name, methods)}; choose from {', '.join(methods)}")


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
            name = find_method(method)
            kind: Any = method_class(name)
            label, method = label or name, kind(Config.small()) if name == "SOPR-T" else kind()
        if isinstance(method, type) or not hasattr(method, "estimate"):
            raise TypeError(f"a method must be a name, or an estimator such as FQE(), got {method!r}")
        label = label or method.name
        if label in chosen:
            raise ValueError(f"two methods are called {label!r}; label them with a mapping")
        chosen[label] = method
    if not chosen:
        raise ValueError("no methods given")
    return chosen


def method_class(name: str) -> type[Estimator]:
    """Return the estimator of a method in `METHODS`."""
    return getattr(import_module(__package__), _CLASSES[name])  # here, as `--help` shows the names without torch


def method_name(estimator: Estimator) -> str:
    """Return the name of an estimator's method in `METHODS`, or its own."""
    names = [name for name, kind in _CLASSES.items() if kind == type(estimator).__name__ and name != SELECT]
    return names[0] if names else estimator.name
