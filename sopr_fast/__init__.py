"""Rank policies before any is deployed: fast supervised off-policy ranking (SOPR-T, ICML 2022)."""

from pkgutil import extend_path

# In a source folder, the compiled modules are those of the installed package.
__path__ = extend_path(__path__, __name__)

from . import baselines, data, metrics, ops, policies
from ._native import build_info
from ._version import __version__
from .config import Config
from .fitting import fit
from .ranker import ForeignPolicyWarning, Ranker, load, rank
from .ranking import Ranking
from .subsets import Subsets
from .training import CollapsedTrainingWarning

__all__ = [
    "CollapsedTrainingWarning",
    "Config",
    "ForeignPolicyWarning",
    "Ranker",
    "Ranking",
    "Subsets",
    "__version__",
    "baselines",
    "build_info",
    "data",
    "fit",
    "load",
    "metrics",
    "ops",
    "policies",
    "rank",
]
