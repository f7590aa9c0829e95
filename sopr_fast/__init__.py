"""Rank policies before any is deployed: fast supervised off-policy ranking (SOPR-T, ICML 2022)."""

from pkgutil import extend_path

# In a source folder, the compiled modules are those of the installed package.
__path__ = extend_path(__path__, __name__)

from . import data, estimators, metrics, ops, policies, selection
from ._version import __version__
from .ranking import ForeignPolicyWarning, Ranking, TrainingPolicyWarning
from .runtime.native import build_info
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
    "__version__",
    "build_info",
    "data",
    "estimators",
    "evaluate",
    "fit",
    "load",
    "metrics",
    "ops",
    "policies",
    "rank",
    "select",
    "selection",
]
