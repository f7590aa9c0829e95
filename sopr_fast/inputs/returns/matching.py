"""Returns and groups of given policies."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.text import suggest
from ...runtime.warn import warn
from .reading import is_ordered, load_returns

if TYPE_CHECKING:
    import pandas

    from ..policies import Policies


def with_returns(policies: Policies, returns: Any) -> tuple[Policies, pandas.DataFrame]:
    """Return the policies that have a return, and the table of their returns in the same order.

    Args:
        policies: P policies.
        returns: See `load_returns`; in order only for policies that were given in memory.

    Raises:
        FileNotFoundError, TypeError, ValueError: See `load_returns`; or no policy has a return, or returns are in order
            and policies are of files.

    Warns:
        UserWarning: Some policies have none.
    """
    check_ordered("returns", returns, policies)
    table = load_returns(returns, list(policies))
    missing = [name for name in policies if name not in table.index]
    if missing:
        complaint = describe_missing(missing, list(table.index))
        if len(missing) == len(policies):
            raise ValueError(f"no policy has a return: {complaint}")
        warn(f"policies without a return are left out: {complaint}")
    known = policies.take([name for name in policies if name not in missing])
    return known, table.loc[list(known)]


def check_ordered(what: str, values: Any, policies: Policies) -> None:
    """Raise ValueError if values are in order and policies are of files, whose order the user did not choose.

    Args:
        what: What the values are, such as "returns".
        values: The values.
        policies: The policies.
    """
    if is_ordered(values) and not policies.in_memory:
        raise ValueError(f"{what} are in order, but policies come from files: give {what} by their names")


def check_returns(returns: Any, names: Sequence[str]) -> np.ndarray:
    """Return the returns of all named policies, (M,) float64.

    Args:
        returns: See `load_returns`.
        names: (M,) names of the policies.

    Raises:
        FileNotFoundError, TypeError, ValueError: See `load_returns`; or a policy has no return.
    """
    table = load_returns(returns, names)
    if missing := [name for name in names if name not in table.index]:
        raise ValueError(describe_missing(missing, list(table.index)))
    return table.loc[list(names), "return"].to_numpy(np.float64, copy=True)


def check_groups(groups: Any, names: Sequence[str]) -> list[Any]:
    """Return the group of every policy.

    Args:
        groups: Mapping or series by name, or a sequence in the order of the names.
        names: Names of the M policies.

    Raises:
        ValueError: A group is missing, or there is not one for each policy.
    """
    import pandas

    if isinstance(groups, Set) or (is_ordered(groups) and len(groups) != len(names)):
        raise ValueError(f"groups must be one for each of {len(names)} policies, got {groups!r}; give them by name")
    given = dict(zip(names, groups, strict=True)) if is_ordered(groups) else dict(groups)
    if missing := [name for name in names if pandas.isna(given.get(name))]:
        raise ValueError(describe_missing(missing, [name for name in given if name not in missing], "groups"))
    return [given[name] for name in names]


def describe_missing(missing: Sequence[str], names: Collection[Any], what: str = "returns") -> str:
    """Return a message that says which policies have no return, and the nearest names that have one.

    Args:
        missing: Names of policies, at least one.
        names: Names that have a return.
        what: What is missing.
    """
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{what} hold nothing for policy {missing[0]!r}{suggest(missing[0], names)}{more}"
