"""Estimators of the values of policies from a log, behind one interface.

`FQE`, `BehaviourQ`, `DualDICE`, `ImportanceWeighting`, `DoublyRobust` and `Simulator` learn from logged rewards;
`SOPR`, `NearestPolicy` and `GaussianProcess` learn from the returns of known policies.
"""

from ..results.estimates import Estimates, UncertainEstimateWarning
from .action_distance import GaussianProcess, NearestPolicy
from .critics import FQE, BehaviourQ
from .doubly_robust import DoublyRobust
from .dual_dice import DualDICE
from .estimator import Estimator
from .importance_weighting import ImportanceWeighting
from .simulator import Simulator
from .sopr import SOPR

__all__ = [
    "FQE",
    "SOPR",
    "BehaviourQ",
    "DoublyRobust",
    "DualDICE",
    "Estimates",
    "Estimator",
    "GaussianProcess",
    "ImportanceWeighting",
    "NearestPolicy",
    "Simulator",
    "UncertainEstimateWarning",
]
