"""Logged data: transitions for the estimators, states to draw subsets from."""

from .loading import describe, load_log, load_states, load_transitions
from .states import StoredStates
from .transitions import Transitions

__all__ = ["StoredStates", "Transitions", "describe", "load_log", "load_states", "load_transitions"]
