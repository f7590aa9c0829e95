"""Policies under one interface: names, actions, distributions, and the columns that the model reads."""

from .actor import Actor
from .array_policy import ArrayPolicy
from .layout import Layout, collect, probe, warn_of_answers
from .meeting import check_actions, check_widths, doubts, facts
from .output import Gaussian, Output, Probabilities
from .policies import Policies, load_policies
from .policy import Policy

__all__ = [
    "Actor",
    "ArrayPolicy",
    "Gaussian",
    "Layout",
    "Output",
    "Policies",
    "Policy",
    "Probabilities",
    "check_actions",
    "check_widths",
    "collect",
    "doubts",
    "facts",
    "load_policies",
    "probe",
    "warn_of_answers",
]
