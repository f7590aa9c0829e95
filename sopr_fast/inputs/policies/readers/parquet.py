"""Parquet files of actions in every state of the data."""

from __future__ import annotations

from pathlib import Path

from ...logs.keys import KEYS, check_is_policy
from ...logs.tables import ParquetArray
from ..arrays import ArrayPolicy
from .options import Options


def read(path: Path, options: Options) -> list[ArrayPolicy]:
    """Read where the actions are; rows are read when the policy acts, a row group at a time."""
    actions = ParquetArray(path, KEYS["actions"])
    check_is_policy(actions.columns, ("rewards", "next_states", "terminals"))  # states may accompany actions
    return [ArrayPolicy(options.name, actions, action_count=options.action_count)]
