"""Stage 3b: competent policies of further algorithms on every log, and a test set of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import sopr_fast.inputs.logs
from sopr_fast.inputs.logs import Transitions

from .games import LOGS
from .manifest import Task, is_made
from .offline import collect, train_one
from .scales import SCALES

FAMILIES = ("bc", "bc-best", "rebrac")
_BATCH = 256
_HIDDEN = 128  # half the usual width: a fourth of the bytes, since the small sets are kept in git
_BEST_SHARE = 0.1  # of the rows, in episodes of the largest return, that "bc-best" imitates


SIZES = {  # by scale: updates and snapshots of each family, and rollouts of each policy
    "smoke": (dict.fromkeys(FAMILIES, (10, 2)), 2),
    "small": ({"bc": (5_000, 5), "bc-best": (5_000, 5), "rebrac": (120_000, 30)}, 20),
    "paper": (dict.fromkeys(FAMILIES, (500_000, 50)), 100),
}


def train_all(task: Task) -> list[Path]:
    """Train all families on every log, and return the paths of the test sets, `competent/LOG/policies.npz`."""
    families, rollouts = next(SIZES[name] for name, scale in SCALES.items() if scale == task.scale)
    products = []
    for log in LOGS:
        folder = task.folder / "competent" / log
        folder.mkdir(parents=True, exist_ok=True)
        product = folder / "policies.npz"
        sources = {family: folder / f"{family}.npz" for family in families}
        if not is_made(task, product):
            _train_missing(task, families, sources, log)
            product = collect(replace(task, scale=replace(task.scale, rollouts=rollouts)), folder, sources)
        products.append(product)
    return products


def _train_missing(task: Task, families: dict[str, tuple[int, int]], sources: dict[str, Path], log: str) -> None:
    transitions = None
    for family, source in sources.items():
        if is_made(task, source):
            continue
        if transitions is None:
            transitions = sopr_fast.load_log(task.folder / "logs" / f"{log}.hdf5")
        updates, snapshots = families[family]
        scale = replace(
            task.scale,
            offline_updates=updates,
            offline_snapshots=snapshots,
            offline_batch=_BATCH,
            offline_hidden=_HIDDEN,
        )
        rows = best_episodes(transitions) if family == "bc-best" else transitions
        train_one(replace(task, scale=scale), source, family, rows, log)


def best_episodes(log: Transitions, share: float = _BEST_SHARE) -> Transitions:
    """Return the episodes with the largest returns, until they hold a share of the rows."""
    starts, ends = log.episodes[:-1], log.episodes[1:]
    returns = np.add.reduceat(log.rewards.astype(np.float64), starts)
    order = np.argsort(-returns, kind="stable")
    count = int(np.searchsorted(np.cumsum((ends - starts)[order]), share * len(log))) + 1
    return log.take(np.sort(order[:count]))
