"""Returns of policies: from whatever holds them to one table by name."""

from .returns import check_groups, check_ordered, check_returns, find_returns, is_ordered, load_returns, with_returns
