"""Evaluation of methods, selection of policies, and the evidence for both."""

from .comparing import compare
from .cross_validation import evaluate
from .evaluation import Evaluation
from .predicting import select
from .selection import Selection

__all__ = ["Evaluation", "Selection", "compare", "evaluate", "select"]
