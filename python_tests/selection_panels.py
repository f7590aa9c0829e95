"""Synthetic panels with known truth."""

import numpy as np

from sopr_fast.selection.panel import Panel


def synthetic(seed=0, groups=4, size=12, held=1, noise=0.5, offset=0.5, quality=1.0, claims=True):
    """Make groups whose returns have offsets, and four columns: two good, one useless, one reversed.

    The last `held` groups are candidates.

    Returns:
        The panel and the (P,) true returns.
    """
    rng = np.random.default_rng(seed)
    count = groups * size
    labels = np.repeat(np.arange(groups), size)
    skill = rng.standard_normal(count)
    truth = 100 + 10 * (skill + offset * rng.standard_normal(groups)[labels])
    columns = {
        "good": quality * skill + noise * rng.standard_normal(count),
        "fair": quality * skill + 2 * noise * rng.standard_normal(count),
        "useless": rng.standard_normal(count),
        "reversed": -quality * skill + noise * rng.standard_normal(count),
    }
    known = labels < groups - held
    panel = Panel.build(
        [f"policy {i}" for i in range(count)],
        np.where(known, truth, np.nan),
        columns,
        groups=[f"group {g}" if k or claims else "" for g, k in zip(labels, known, strict=True)],
    )
    return panel, truth
