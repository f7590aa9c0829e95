"""How far policies were trained, which tells the order of a run's snapshots where a simulator does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..runtime.text import list_names


def trained_shares(progress: Mapping[str, float], names: Sequence[str], runs: Sequence[str]) -> np.ndarray:
    """Return how far each policy (P,) was trained, as a share of the last step of its run.

    It is NaN for a policy without a step, or whose run has no other one.

    Raises:
        ValueError: A name is unknown, or a step is not a finite number above 0.
    """
    import pandas

    if strangers := [name for name in progress if name not in names]:
        raise ValueError(f"progress: there is no policy {strangers[0]!r}; the policies are {list_names(list(names))}")
    for name, step in progress.items():
        if not 0 < step < np.inf:
            raise ValueError(f"progress of {name!r} must be a number of steps above 0, got {step}")
    steps = pandas.Series([progress.get(name, np.nan) for name in names], dtype=float)
    of_run = steps.groupby(list(runs))
    return (steps / of_run.transform("max")).where(of_run.transform("nunique") > 1).to_numpy()


def standardised(shares: np.ndarray | None, count: int) -> np.ndarray:
    """Return shares (P,) with mean 0 and standard deviation 1; 0 for policies without one."""
    found = np.zeros(count)
    if shares is not None and np.isfinite(shares).sum() > 1:
        has = np.isfinite(shares)
        found[has] = (shares[has] - shares[has].mean()) / (shares[has].std() or 1.0)
    return found
