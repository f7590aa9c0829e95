"""Logged data: transitions for the estimators, states to draw subsets from."""

from .describe import LogDescription, describe
from .loading import load_log, load_transitions
from .states import load_states
from .stored import StoredStates
from .transitions import Transitions

__all__ = [
    "LogDescription",
    "StoredStates",
    "Transitions",
    "describe",
    "load_log",
    "load_states",
    "load_transitions",
]
