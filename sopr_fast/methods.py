"""Methods of `evaluate` and `select` by name: the default panel and thorough ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

# Estimators are imported when one is made: `--help` shows the names without torch.
import sopr_fast as sf

if TYPE_CHECKING:
    from .estimators import Estimator
    from .sopr.config import Config

_FACTORIES: dict[str, Callable[[], Estimator]] = {
    "SOPR-T": lambda: sf.estimators.SOPR(small_model()),
    "nearest policy": lambda: sf.estimators.NearestPolicy(rows=2048),
    "Gaussian process": lambda: sf.estimators.GaussianProcess(rows=2048),
    "SARSA critic": lambda: sf.estimators.BehaviourQ(updates=4000, hidden=(128, 128), learning_rate=1e-3),
    "FQE": lambda: sf.estimators.FQE(updates=2000, batch_size=128, hidden=(64, 64), learning_rate=1e-3, ensemble=2),
    "simulator": lambda: sf.estimators.Simulator(updates=1000, hidden=(128, 128)),
    "importance weighting": lambda: sf.estimators.ImportanceWeighting(
        updates=2000, hidden=(128, 128), clip=(-6.0, 2.0), bootstraps=50
    ),
    "LSTDQ": lambda: sf.estimators.LSTDQ(),
    "SOPR-T thorough": lambda: sf.estimators.SOPR(sf.Config(subset_size=4096, clusters=64, subsets=120, steps=120)),
    "SOPR-MLP": lambda: sf.estimators.SOPR(
        sf.Config(encoder="mlp", subset_size=4096, clusters=64, subsets=120, steps=120)
    ),
    "SARSA critic thorough": lambda: sf.estimators.BehaviourQ(),
    "FQE thorough": lambda: sf.estimators.FQE(ensemble=3),
    "simulator thorough": lambda: sf.estimators.Simulator(),
    "DualDICE": lambda: sf.estimators.DualDICE(
        updates=2000, batch_size=128, hidden=(64, 64), nu_rate=1e-3, zeta_rate=3e-3
    ),
    "DualDICE thorough": lambda: sf.estimators.DualDICE(),
}

METHODS = tuple(_FACTORIES)
DEFAULT_PANEL = METHODS[:7]


def small_model() -> Config:
    """Return the settings of the default panel's SOPR-T: a small model that trains in seconds."""
    return sf.Config(
        width=32,
        low_layers=1,
        low_feedforward=64,
        high_layers=2,
        high_heads=4,
        high_feedforward=128,
        subset_size=512,
        clusters=16,
        subsets=20,
        steps=80,
    )


def read_methods(methods: Any) -> dict[str, Estimator]:
    """Return estimators by label.

    Args:
        methods: None for the default panel, names of methods (see `METHODS`), estimators, or a mapping from label to
            either.

    Raises:
        TypeError: Something is neither a name nor an estimator.
        ValueError: A name is unknown, two methods share a label, or there is none.
    """
    if methods is None:
        methods = DEFAULT_PANEL
    if isinstance(methods, str) or hasattr(methods, "estimate"):
        methods = [methods]
    items = methods.items() if isinstance(methods, Mapping) else [(None, method) for method in methods]
    chosen: dict[str, Estimator] = {}
    for label, method in items:
        if isinstance(method, str):
            if method not in _FACTORIES:
                raise ValueError(f"no method {method!r}; choose from {', '.join(METHODS)}, or pass an estimator")
            label, method = label or method, _FACTORIES[method]()
        if isinstance(method, type) or not hasattr(method, "estimate"):
            shown = (
                f"the class {method.__name__}; pass {method.__name__}()" if isinstance(method, type) else repr(method)
            )
            raise TypeError(f"a method must be a name or an estimator, got {shown}")
        label = label or method.name
        if label in chosen:
            raise ValueError(f"two methods are called {label!r}; label them with a mapping")
        chosen[label] = method
    if not chosen:
        raise ValueError("no methods given")
    return chosen
