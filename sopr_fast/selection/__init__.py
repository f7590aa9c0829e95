"""Evaluation of methods, selection of candidates, and the evidence for both."""

from ..methods import DEFAULT_PANEL, METHODS
from .evaluating import evaluate
from .evaluation import Evaluation
from .panel import Panel
from .selecting import select
from .selection import Selection

__all__ = ["DEFAULT_PANEL", "METHODS", "Evaluation", "Panel", "Selection", "evaluate", "select"]
