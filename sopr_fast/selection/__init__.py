"""Evaluation of methods, selection of policies, and the evidence for both."""

from .cross_validation import evaluate
from .evaluation import Evaluation
from .predicting import select
from .selection import Selection

__all__ = ["Evaluation", "Selection", "evaluate", "select"]
