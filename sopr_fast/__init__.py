"""Rank policies before any is deployed: fast supervised off-policy ranking (SOPR-T, ICML 2022)."""

from __future__ import annotations

import sys
from pkgutil import extend_path
from typing import TYPE_CHECKING

# In a source folder, the compiled modules are those of the installed package.
__path__ = extend_path(__path__, __name__)

from ._version import __version__ as __version__
from .runtime.lazy import lazy_names

if TYPE_CHECKING:
    from . import estimators as estimators
    from . import inputs as inputs
    from . import ops as ops
    from . import selection as selection
    from .inputs.logs import load_log as load_log
    from .inputs.policies import load_policies as load_policies
    from .inputs.returns import load_returns as load_returns
    from .native import build_info as build_info
    from .reports import report as report
    from .results import metrics as metrics
    from .results.estimates import UncertainEstimateWarning as UncertainEstimateWarning
    from .results.ranking import Ranking as Ranking
    from .results.warnings import ForeignPolicyWarning as ForeignPolicyWarning
    from .runtime.options import options as options
    from .runtime.warn import DoubtfulPolicyWarning as DoubtfulPolicyWarning
    from .selection import Evaluation as Evaluation
    from .selection import Selection as Selection
    from .selection import evaluate as evaluate
    from .selection import select as select
    from .sopr.config import Config as Config
    from .sopr.fitting import fit as fit
    from .sopr.ranker import Ranker as Ranker
    from .sopr.ranker import load as load
    from .sopr.ranker import rank as rank
    from .sopr.training import CollapsedTrainingWarning as CollapsedTrainingWarning

__all__, __getattr__ = lazy_names(sys.modules[__name__])
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return __all__
