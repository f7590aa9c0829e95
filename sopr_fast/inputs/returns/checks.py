"""Returns of policies, by name or in order, checked."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from numbers import Number
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import Tensor

from ...runtime.arrays import fill_masked
from ...runtime.text import NAME_WIDTH, printable
from ...runtime.warn import warn
from ..policies.files import swapped_files
from .reading import is_source, read_returns


class _HasName(Protocol):
    name: str
    skipped: tuple[str, ...]


_Named = TypeVar("_Named", bound=_HasName)


def check_returns(returns: Any, names: list[str]) -> np.ndarray:
    """Return the returns of all named policies, (M,) float64.

    Args:
        returns: Mapping from name to return; path of a file or folder, or data frame with a name and a return in each
            row (see `read_returns`); or numbers in the order of the names: an array or any ordered iterable. A pandas
            series is by name if its index holds strings, and in order if its index is 0, 1, ….
        names: (M,) names of the policies.

    Raises:
        FileNotFoundError: There is no such file.
        TypeError: Returns are not numbers, or are a table.
        ValueError: Returns are missing, repeated, not finite, of another number, or have another index.
    """
    if returns is None:
        raise ValueError("returns are needed (or preferences)")
    if is_source(returns):
        returns = read_returns(returns, names)
    returns = in_order("returns", returns, names)
    if isinstance(returns, Tensor):
        returns = returns.detach().cpu()
        returns = returns if returns.is_complex() else returns.double()
    try:
        values = np.asarray(fill_masked(returns))
        if values.dtype.kind in "SU":
            raise ValueError("they are text")
        if values.dtype.kind == "c":
            raise ValueError("they are complex")
        values = values.astype(np.float64)
    except (OverflowError, TypeError, ValueError) as error:
        raise TypeError(f"returns must be numbers: {error}") from error
    if values.shape != (len(names),):
        raise ValueError(f"returns must have shape ({len(names)},), one for each policy, got {values.shape}")
    if not np.isfinite(values).all():
        i = int(np.argmin(np.isfinite(values)))
        raise ValueError(f"the return of policy {names[i]!r} is {values[i]}")
    return values


def in_order(what: str, values: Any, names: list[str]) -> Any:
    """Return what was given for each policy, by name or in order, as a list or an array in the order of the names.

    Args:
        what: Beginning of the messages, such as "groups".
        values: Mapping by name; pandas series by name, if its index holds strings, or in order, if its index is
            0, 1, …; array, or any ordered iterable, in order. Anything else is returned as it is.
        names: (M,) names of the policies.

    Raises:
        TypeError: The values are a table.
        ValueError: A policy has no value or several, or the values have another index.
    """
    if hasattr(values, "columns"):
        raise TypeError(f"{what} are a {type(values).__name__}; pass one of its columns")
    if _are_by_name(values):
        count = Counter(values.keys())
        for name in names:
            if count[name] > 1:
                raise ValueError(f"{what} hold several values for policy {name!r}")
        if missing := without_return(values, names):
            raise ValueError(describe_missing(missing, values, what))
        return [values[name] for name in names]
    if hasattr(values, "keys"):
        check_index(what, values.keys())
    if isinstance(values, Iterable) and not isinstance(values, Set | str) and not hasattr(values, "__array__"):
        return list(values)
    return values


def check_groups(groups: Any, names: list[str]) -> list[Any]:
    """Return the group of every policy.

    Args:
        groups: By name or in order, see `in_order`.
        names: Names of the M policies.

    Raises:
        ValueError: A group is missing, or there is not one for each policy.
    """
    groups = in_order("groups", groups, names)
    if isinstance(groups, str | Set) or len(groups) != len(names):
        raise ValueError(f"groups must be one for each of {len(names)} policies, got {groups!r}")
    for name, group in zip(names, groups, strict=True):
        if is_missing(group):
            raise ValueError(f"the group of policy {name!r} is {group}; give it one of its own if it has no other")
    return list(groups)


def is_missing(group: Any) -> bool:
    """Return whether a group is None or NaN, that of pandas too."""
    return not isinstance(group, str) and str(group) in ("None", "nan", "<NA>", "NaT")


def check_index(what: str, index: Iterable[Any]) -> None:
    """Raise ValueError unless an index without names is 0, 1, …, that is in order; `what` begins the message."""
    labels = list(index)
    if labels != list(range(len(labels))):
        raise ValueError(
            f"{what} have an index that is neither names of policies nor 0 to {len(labels) - 1}; "
            "index them by name, or pass .to_numpy() if they are in the order of the policies"
        )


def without_return(returns: Any, names: list[str]) -> list[str]:
    """Return the names without a return; none if returns are given in order."""
    return [name for name in names if name not in returns.keys()] if _are_by_name(returns) else []  # noqa: SIM118


def describe_missing(missing: list[str], returns: Any, what: str = "returns") -> str:
    """Return a message that names policies without a return and the nearest names that have one.

    Args:
        missing: Names of policies, at least one.
        returns: Returns by name.
        what: What is missing.
    """
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{what} hold nothing for policy {missing[0]!r}{suggest(missing[0], list(returns.keys()))}{more}"


def with_returns(policies: list[_Named], returns: Any) -> tuple[list[_Named], Any]:
    """Return the policies that have a return, and the returns; a file or data frame is read.

    Args:
        policies: Policies with their names.
        returns: See `check_returns`.

    Raises:
        FileNotFoundError, TypeError, ValueError: See `read_returns`; or no policy has a return.

    Warns:
        UserWarning: Some policies have none.
    """
    names = [policy.name for policy in policies]
    if is_source(returns):
        returns = read_returns(returns, names, skipped=skipped_files(policies))
    missing = without_return(returns, names)
    if missing:
        complaint = describe_missing(missing, returns)
        if len(missing) == len(names):
            raise ValueError(f"no policy has a return: {complaint}")
        warn(f"policies without a return are left out: {complaint}")
    return [policy for policy in policies if policy.name not in missing], returns


def check_positions(what: str, values: Any, policies: Any) -> None:
    """Raise ValueError if values are in order, but policies are of a folder whose order may be misunderstood.

    Args:
        what: Beginning of the message, such as "returns".
        values: Values of the policies, see `in_order`; None for none, or one number for all.
        policies: What a user passed as policies.
    """
    if values is None or isinstance(values, Number) or is_source(values) or _are_by_name(values):
        return
    if not (swapped := swapped_files(policies)):
        return
    first, second = (printable(name, NAME_WIDTH) for name in swapped)
    raise ValueError(
        f"{what} are in order, but a folder is read in the order of its paths, {first} before {second}: give {what} by "
        "the names of the policies"
    )


def skipped_files(policies: Iterable[_HasName]) -> tuple[str, ...]:
    """Return the files that were left out when policies were loaded."""
    return next((policy.skipped for policy in policies if policy.skipped), ())


def suggest(name: str, names: Collection[str]) -> str:
    """Return " (nearest names: …)", or "" if none is near."""
    nearest = difflib.get_close_matches(name, [other for other in names if isinstance(other, str)])
    return f" (nearest names: {', '.join(map(repr, nearest))})" if nearest else ""


def _are_by_name(returns: Any) -> bool:
    if isinstance(returns, Mapping):
        return True
    return hasattr(returns, "keys") and any(isinstance(key, str) for key in returns.keys())  # noqa: SIM118
