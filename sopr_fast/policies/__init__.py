"""Anything that can act, under one interface: names, actions, distributions, columns for the model."""

from .actor import Actor
from .adapters import as_policies
from .arrays import ArrayPolicy
from .collect import Layout, check_fit, collect, probe
from .files import load
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
    "check_fit",
    "collect",
    "load",
    "probe",
]
