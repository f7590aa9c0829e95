"""Returns of policies: by name, in order, from files and folders of runs."""

from .checks import (
    check_groups,
    check_index,
    check_positions,
    check_returns,
    describe_missing,
    in_order,
    is_missing,
    skipped_files,
    suggest,
    with_returns,
    without_return,
)
from .reading import is_source, read_returns
from .values import Returns, of_rollouts, with_single_rollouts

__all__ = [
    "Returns",
    "check_groups",
    "check_index",
    "check_positions",
    "check_returns",
    "describe_missing",
    "in_order",
    "is_missing",
    "is_source",
    "of_rollouts",
    "read_returns",
    "skipped_files",
    "suggest",
    "with_returns",
    "with_single_rollouts",
    "without_return",
]
