"""Facts about a log, which are printed for a reader to judge."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...runtime.text import counted

_BEYOND = 1e6  # times the typical reward: float32 hardly tells the others apart


def repeated(values: np.ndarray, episodes: np.ndarray) -> float:
    """Return in which share of the steps that are not the first of an episode the row equals the one before."""
    equal = np.ones(len(values) - 1, bool)
    for column in values.T:  # all at once could take as much memory as the log
        equal &= column[1:] == column[:-1]
    equal[episodes[1:-1] - 1] = False
    return float(equal.sum() / max(1, len(values) - (len(episodes) - 1)))


def rewards_beyond(rewards: np.ndarray, source: np.ndarray) -> list[str]:
    """Return words about rewards (N,) far beyond the typical magnitude, the geometric mean of those that are not 0."""
    sizes = np.abs(rewards)
    logarithms = sizes[sizes > 0]
    typical = np.exp(np.log(logarithms, out=logarithms).mean(dtype=np.float64)) if len(logarithms) else np.inf
    if not (beyond := sizes > _BEYOND * typical).any():
        return []
    row = int(sizes.argmax())
    return [
        f"beyond {_BEYOND:g} times the typical reward {typical:.3g}: {counted(beyond.sum(), 'reward')}, such as "
        f"{rewards[row]:.3g} at row {source[row]}"
    ]


def describe_columns(columns: Mapping[str, np.ndarray]) -> str:
    """Return a table of the range, mean, deviation and share of distinct values of columns (N,) by name."""
    import pandas

    rows = [(x.min(), x.max(), x.mean(dtype=np.float64), x.std(dtype=np.float64)) for x in columns.values()]
    table = pandas.DataFrame(rows, [*columns], ["low", "high", "mean", "std"])
    counts = [len(np.unique(x)) for x in columns.values()]
    table["distinct"] = [
        "constant" if n == 1 else f"{n / len(x):.2%}" for n, x in zip(counts, columns.values(), strict=True)
    ]
    return table.to_string(float_format="{:.4g}".format, max_rows=40)
