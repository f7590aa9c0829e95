"""Stage 3b: competent policies of cheaper algorithms on every log, and a test set of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import sopr_fast.data
from sopr_fast.data import Transitions

from .manifest import Task, is_made
from .offline import ALGORITHMS, chosen_logs, collect, train_one
from .scales import SCALES

FAMILIES = ("bc", "bc-best", "td3-bc", "iql", "awac")
_BATCH = 256
_BEST_SHARE = 0.1  # of the rows, in episodes of the largest return, that "bc-best" imitates


@dataclass(frozen=True)
class Sizes:
    """Sizes of this stage at one scale.

    Attributes:
        families: Some of `FAMILIES`, those worth their cost.
        updates: Updates per family and log.
        snapshots: Policies saved per family and log.
        rollouts: Episodes per policy that measure its return.
    """

    families: tuple[str, ...]
    updates: int
    snapshots: int
    rollouts: int


SIZES = {
    "smoke": Sizes(FAMILIES, updates=10, snapshots=2, rollouts=2),
    "small": Sizes(("bc", "bc-best"), updates=10_000, snapshots=5, rollouts=20),
    "paper": Sizes(FAMILIES, updates=500_000, snapshots=50, rollouts=100),
}


def train_all(task: Task) -> list[Path]:
    """Train the scale's families on every log, then choose policies evenly spaced in return.

    Snapshots of BEAR, CQL and CRR are measured again and take part where they are there.

    Args:
        task: Game, scale, folder and device.

    Returns:
        Paths `competent/LOG/policies.npz`; `returns.csv` and `all.csv` lie beside them.
    """
    sizes = next(SIZES[name] for name, scale in SCALES.items() if scale == task.scale)
    scale = replace(
        task.scale,
        offline_updates=sizes.updates,
        offline_snapshots=sizes.snapshots,
        offline_batch=_BATCH,
        rollouts=sizes.rollouts,
    )
    own = replace(task, scale=scale)
    products = []
    for log in chosen_logs(task):
        folder = task.folder / "competent" / log
        folder.mkdir(parents=True, exist_ok=True)
        sources = {family: folder / f"{family}.npz" for family in sizes.families}
        if missing := [family for family in sizes.families if not is_made(sources[family])]:
            transitions = sopr_fast.data.load(task.folder / "logs" / f"{log}.hdf5")
            for family in missing:
                data = best_episodes(transitions) if family == "bc-best" else transitions
                train_one(own, sources[family], family, data, log)
        older = {name: task.folder / "offline" / log / f"{name}.npz" for name in ALGORITHMS}
        sources |= {name: path for name, path in older.items() if is_made(path)}
        products.append(collect(own, folder, sources))
    return products


def best_episodes(log: Transitions, share: float = _BEST_SHARE) -> Transitions:
    """Return the episodes with the largest returns, until they hold a share of the rows.

    Args:
        log: All episodes.
        share: Share of the rows to reach.
    """
    starts, ends = log.episodes[:-1], log.episodes[1:]
    returns = np.add.reduceat(log.rewards.astype(np.float64), starts)
    order = np.argsort(-returns, kind="stable")
    count = int(np.searchsorted(np.cumsum((ends - starts)[order]), share * len(log))) + 1
    rows = np.concatenate([np.arange(starts[i], ends[i]) for i in np.sort(order[:count])])
    arrays = (log.states, log.actions, log.rewards, log.next_states, log.terminals, log.timeouts)
    return Transitions.from_arrays(*(array[rows] for array in arrays))
