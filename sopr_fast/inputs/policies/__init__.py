"""Policies under one interface: names, actions, distributions, and the columns that the model reads."""

from .acting import collect, collect_shared, new_columns
from .actor import Actor
from .array_policy import ArrayPolicy
from .meeting import check_widths, doubtful_answers, facts, probe
from .output import Layout, Output
from .policies import Policies, load_policies
from .policy import Policy
