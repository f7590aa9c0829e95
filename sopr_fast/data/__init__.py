"""Logged data: transitions for the estimators, states for drawing subsets."""

from .loading import load
from .states import load_states
from .stored import StoredStates
from .transitions import Transitions

__all__ = ["StoredStates", "Transitions", "load", "load_states"]
