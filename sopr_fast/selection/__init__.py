"""Evaluation of methods, selection of policies, and the evidence for both."""

from .evaluation import Evaluation, evaluate
from .selection import Selection, select

__all__ = ["Evaluation", "Selection", "evaluate", "select"]
