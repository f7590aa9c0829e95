"""Stage 3b: competent policies of cheaper algorithms on every log, and a test set of them."""

from __future__ import annotations

from dataclasses import replace
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
_UPDATES = {"smoke": (10, 2), "small": (10_000, 5), "paper": (500_000, 50)}  # updates and snapshots


def train_all(task: Task) -> list[Path]:
    """Train every family on every log, then choose policies evenly spaced in return.

    Snapshots of BEAR, CQL and CRR are measured again and take part where they are there.

    Args:
        task: Game, scale, folder and device.

    Returns:
        Paths `competent/LOG/policies.npz`; `returns.csv` and `all.csv` lie beside them.
    """
    updates, snapshots = next(_UPDATES[name] for name, scale in SCALES.items() if scale == task.scale)
    scale = replace(task.scale, offline_updates=updates, offline_snapshots=snapshots, offline_batch=_BATCH)
    own = replace(task, scale=scale)
    products = []
    for log in chosen_logs(task):
        folder = task.folder / "competent" / log
        folder.mkdir(parents=True, exist_ok=True)
        sources = {family: folder / f"{family}.npz" for family in FAMILIES}
        if missing := [family for family in FAMILIES if not is_made(sources[family])]:
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
