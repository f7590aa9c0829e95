"""Known returns with their standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..inputs.logs.keys import list_names
from ..inputs.returns import is_ordered, load_returns


def read_known_returns(
    returns: Any, names: list[str], ordered: list[str]
) -> tuple[np.ndarray, np.ndarray, dict[str, str]]:
    """Return returns (P,), NaN where unknown, their standard errors (P,), 0 where unknown, and copies by name.

    Returns in order are those of the `ordered` policies.

    Raises:
        ValueError: See `sopr_fast.load_returns`; or no policy has a return although some are given.
    """
    if returns is None:
        return np.full(len(names), np.nan), np.zeros(len(names)), {}
    given = load_returns(returns, ordered if is_ordered(returns) else names)
    table = given.reindex(names)
    if table["return"].isna().all():
        raise ValueError(
            f"no policy has a return: returns are given of {list_names([*given.index])}, the policies are "
            f"{list_names(names)}"
        )
    values, errors = table["return"].to_numpy(copy=True), table["error"].fillna(0.0).to_numpy(copy=True)
    return values, errors, given.attrs.get("copies", {})
