"""Policies under one interface: names, actions, distributions, and the columns that the model reads."""

from .actor import Actor
from .adapters import as_policies
from .arrays import ArrayPolicy
from .files import load
from .layout import Layout, check_actions, check_fit, collect, probe
from .output import Gaussian, Output, Probabilities
from .policy import Policy

__all__ = [
    "Actor",
    "ArrayPolicy",
    "Gaussian",
    "Layout",
    "Output",
    "Policy",
    "Probabilities",
    "as_policies",
    "check_actions",
    "check_fit",
    "collect",
    "load",
    "probe",
]
