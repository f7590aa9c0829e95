"""Estimators of the values of policies from a log, behind one interface.

`FQE`, `BehaviourQ`, `DualDICE`, `ImportanceWeighting` and `Simulator` learn from logged rewards; `SOPR`,
`NearestPolicy` and `GaussianProcess` learn from the returns of known policies.
"""

from ..ranking.estimates import Estimates, UncertainEstimateWarning
from .behaviour_q import BehaviourQ
from .dual_dice import DualDICE
from .estimator import Estimator
from .fqe import FQE
from .gaussian_process import GaussianProcess
from .importance_weighting import ImportanceWeighting
from .nearest_policy import NearestPolicy
from .simulator import Simulator
from .sopr import SOPR

__all__ = [
    "FQE",
    "SOPR",
    "BehaviourQ",
    "DualDICE",
    "Estimates",
    "Estimator",
    "GaussianProcess",
    "ImportanceWeighting",
    "NearestPolicy",
    "Simulator",
    "UncertainEstimateWarning",
]
