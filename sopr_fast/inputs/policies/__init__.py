"""Policies under one interface: names, actions, distributions, and the columns that the model reads."""

from .actor import Actor
from .arrays import ArrayPolicy
from .layout import Layout, check_actions, check_widths, collect, probe, warn_of_answers, warn_of_units
from .loading import Policies, load_policies
from .output import Gaussian, Output, Probabilities
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
    "load_policies",
    "probe",
    "warn_of_answers",
    "warn_of_units",
]
