"""Logged data: transitions for the baselines, states for drawing subsets."""

from .loading import load
from .transitions import Transitions

__all__ = ["Transitions", "load"]
