"""Evaluation of methods, selection of policies, and the evidence for both."""

from ..methods import DEFAULT_METHODS, METHODS
from .comparing import compare
from .evaluating import evaluate
from .evaluation import Evaluation
from .selecting import select
from .selection import Selection

__all__ = ["DEFAULT_METHODS", "METHODS", "Evaluation", "Selection", "compare", "evaluate", "select"]
