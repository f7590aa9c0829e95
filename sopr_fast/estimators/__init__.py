"""Estimators that learn from rewards or from known returns: what SOPR-T is compared with, for all policies at once."""

from .behaviour_q import BehaviourQ
from .critics import Critic
from .dual_dice import DualDICE
from .estimates import Estimates, UncertainEstimateWarning
from .fqe import FQE
from .importance_weighting import ImportanceWeighting
from .model_based import ModelBased
from .nearest_policy import NearestPolicy

__all__ = [
    "FQE",
    "BehaviourQ",
    "Critic",
    "DualDICE",
    "Estimates",
    "ImportanceWeighting",
    "ModelBased",
    "NearestPolicy",
    "UncertainEstimateWarning",
]
