"""Rank policies before any is deployed: fast supervised off-policy ranking (SOPR-T, ICML 2022)."""

from __future__ import annotations

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

# In a source folder, the compiled modules are those of the installed package.
__path__ = extend_path(__path__, __name__)

from ._version import __version__

if TYPE_CHECKING:
    from . import estimators, inputs, ops, selection
    from .estimators import UncertainEstimateWarning
    from .inputs.logs import load_log
    from .inputs.policies import load as load_policies
    from .inputs.returns import load_returns
    from .reports import report
    from .results import metrics
    from .results.ranking import Ranking
    from .results.warnings import ForeignPolicyWarning, TrainingPolicyWarning
    from .runtime.native import build_info
    from .runtime.options import options
    from .selection import Evaluation, Selection, evaluate, select
    from .sopr.config import Config
    from .sopr.fitting import fit
    from .sopr.ranker import Ranker, load, rank
    from .sopr.subsets import Subsets
    from .sopr.training import CollapsedTrainingWarning

__all__ = [
    "CollapsedTrainingWarning",
    "Config",
    "Evaluation",
    "ForeignPolicyWarning",
    "Ranker",
    "Ranking",
    "Selection",
    "Subsets",
    "TrainingPolicyWarning",
    "UncertainEstimateWarning",
    "__version__",
    "build_info",
    "estimators",
    "evaluate",
    "fit",
    "inputs",
    "load",
    "load_log",
    "load_policies",
    "load_returns",
    "metrics",
    "ops",
    "options",
    "rank",
    "report",
    "select",
    "selection",
]

# Names are imported when first used, so that `sopr-fast --help` does not wait for torch.
_MODULES = {
    "CollapsedTrainingWarning": "sopr.training",
    "Config": "sopr.config",
    "Evaluation": "selection",
    "ForeignPolicyWarning": "results.warnings",
    "Ranker": "sopr.ranker",
    "Ranking": "results.ranking",
    "Selection": "selection",
    "Subsets": "sopr.subsets",
    "TrainingPolicyWarning": "results.warnings",
    "UncertainEstimateWarning": "estimators",
    "build_info": "runtime.native",
    "evaluate": "selection",
    "fit": "sopr.fitting",
    "load": "sopr.ranker",
    "load_log": "inputs.logs",
    "load_policies": "inputs.policies:load",
    "load_returns": "inputs.returns",
    "options": "runtime.options",
    "rank": "sopr.ranker",
    "report": "reports",
    "select": "selection",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        module, _, attribute = _MODULES[name].partition(":")
        value = getattr(import_module(f".{module}", __name__), attribute or name)
        globals()[name] = value
        return value
    if name == "metrics":
        return import_module(".results.metrics", __name__)
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
