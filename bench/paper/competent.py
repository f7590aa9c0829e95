"""Stage 3b: competent policies of further algorithms on every log, and a test set of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import sopr_fast.inputs.logs
from sopr_fast.inputs.logs import Transitions

from . import rebrac
from .games import LOGS
from .manifest import Task, is_made
from .offline import collect, train_one
from .scales import SCALES

D3RLPY_FAMILIES = ("bc", "bc-best", "td3-bc", "iql", "awac")
FAMILIES = (*D3RLPY_FAMILIES, "rebrac")
_BATCH = 256
_HIDDEN = 128  # half the usual width: a fourth of the bytes, since the small sets are kept in git
_BEST_SHARE = 0.1  # of the rows, in episodes of the largest return, that "bc-best" imitates


@dataclass(frozen=True)
class Sizes:
    """Sizes of this stage at one scale.

    Attributes:
        families: Updates and snapshots of some of `FAMILIES`, those worth their cost.
        rollouts: Episodes per policy that measure its return.
    """

    families: dict[str, tuple[int, int]]
    rollouts: int


SIZES = {
    "smoke": Sizes(dict.fromkeys(FAMILIES, (10, 2)), rollouts=2),
    "small": Sizes({"bc": (5_000, 5), "bc-best": (5_000, 5), "rebrac": (120_000, 30)}, rollouts=20),
    "paper": Sizes(dict.fromkeys(FAMILIES, (500_000, 50)), rollouts=100),
}


def train_all(task: Task) -> list[Path]:
    """Train the scale's families on every log, then choose policies evenly spaced in return.

    Args:
        task: Game, scale, folder and device.

    Returns:
        Paths `competent/LOG/policies.npz`; `returns.csv` and `all.csv` lie next to them.
    """
    sizes = next(SIZES[name] for name, scale in SCALES.items() if scale == task.scale)
    products = []
    for log in LOGS:
        folder = task.folder / "competent" / log
        folder.mkdir(parents=True, exist_ok=True)
        product = folder / "policies.npz"
        sources = {family: folder / f"{family}.npz" for family in sizes.families}
        if not is_made(product):
            _train_missing(task, sizes, sources, log)
            product = collect(replace(task, scale=replace(task.scale, rollouts=sizes.rollouts)), folder, sources)
        products.append(product)
    return products


def _train_missing(task: Task, sizes: Sizes, sources: dict[str, Path], log: str) -> None:
    transitions = None
    for family, source in sources.items():
        if is_made(source):
            continue
        if transitions is None:
            transitions = sopr_fast.load_log(task.folder / "logs" / f"{log}.hdf5")
        updates, snapshots = sizes.families[family]
        scale = replace(
            task.scale,
            offline_updates=updates,
            offline_snapshots=snapshots,
            offline_batch=_BATCH,
            offline_hidden=_HIDDEN,
        )
        own = replace(task, scale=scale)
        if family == "rebrac":
            rebrac.train(own, source, transitions, log)
        else:
            train_one(own, source, family, best_episodes(transitions) if family == "bc-best" else transitions, log)


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
    return log.take(np.sort(order[:count]))
