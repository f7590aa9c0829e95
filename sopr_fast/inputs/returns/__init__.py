"""Returns of policies: from whatever holds them to one table by name."""

from .matching import check_groups, check_ordered, check_returns, with_returns
from .reading import is_ordered, load_json, load_returns

__all__ = [
    "check_groups",
    "check_ordered",
    "check_returns",
    "is_ordered",
    "load_json",
    "load_returns",
    "with_returns",
]
