"""Estimators of the values of policies from a log, behind one interface.

`FQE`, `BehaviourQ`, `DualDICE`, `ImportanceWeighting`, `DoublyRobust` and `Simulator` learn from logged rewards;
`SOPR`, `NearestPolicy` and `GaussianProcess` learn from the returns of known policies.
"""

import sys
from typing import TYPE_CHECKING

from ..runtime.lazy import lazy_names

if TYPE_CHECKING:
    from ..results.estimates import Estimates as Estimates
    from ..results.estimates import UncertainEstimateWarning as UncertainEstimateWarning
    from .action_distance import GaussianProcess as GaussianProcess
    from .action_distance import NearestPolicy as NearestPolicy
    from .critics import FQE as FQE
    from .critics import BehaviourQ as BehaviourQ
    from .doubly_robust import DoublyRobust as DoublyRobust
    from .dual_dice import DualDICE as DualDICE
    from .estimator import Estimator as Estimator
    from .importance_weighting import ImportanceWeighting as ImportanceWeighting
    from .methods import DEFAULT_METHODS as DEFAULT_METHODS
    from .methods import METHODS as METHODS
    from .simulator import Simulator as Simulator
    from .sopr import SOPR as SOPR

__all__, __getattr__ = lazy_names(sys.modules[__name__])
