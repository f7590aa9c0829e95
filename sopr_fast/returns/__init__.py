"""Returns of policies: by name, in order, from files and folders of runs."""

from .checks import check_returns, describe_missing, suggest, with_returns, without_return
from .reading import is_source, read_returns
from .values import Returns, of_rollouts

__all__ = [
    "Returns",
    "check_returns",
    "describe_missing",
    "is_source",
    "of_rollouts",
    "read_returns",
    "suggest",
    "with_returns",
    "without_return",
]
