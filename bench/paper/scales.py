"""Scales: sizes of all stages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of all stages.

    Attributes:
        sac_steps: Environment steps of online training.
        learning_starts: Environment steps before the first update.
        sac_batch: Rows of an online update.
        snapshots: Policies saved during online training, evenly spaced.
        rollouts: Episodes per policy that measure its return.
        log_steps: Rows of every log.
        offline_updates: Updates per offline algorithm and log.
        offline_snapshots: Policies saved per offline algorithm and log.
        offline_batch: Rows of an offline update; None for the algorithm's default.
        chosen: Policies of Test Set I per log.
        offline_hidden: Width of the two hidden layers of offline actors; None for the algorithm's default.
    """

    sac_steps: int
    learning_starts: int
    sac_batch: int
    snapshots: int
    rollouts: int
    log_steps: int
    offline_updates: int
    offline_snapshots: int
    offline_batch: int | None
    chosen: int
    offline_hidden: int | None = None

    def split_sizes(self) -> tuple[int, int, int]:
        """Return the numbers of policies for training, validation and Test Set II: 30, 10 and 10 of 50."""
        tenth = max(1, self.snapshots // 5)
        return self.snapshots - 2 * tenth, tenth, tenth


_SMOKE = Scale(
    sac_steps=1200,
    learning_starts=400,
    sac_batch=100,
    snapshots=15,
    rollouts=2,
    log_steps=400,
    offline_updates=20,
    offline_snapshots=2,
    offline_batch=64,
    chosen=3,
)
_SMALL = Scale(
    sac_steps=500_000,
    learning_starts=5_000,
    sac_batch=100,
    snapshots=50,
    rollouts=100,
    log_steps=200_000,
    offline_updates=10_000,
    offline_snapshots=5,
    offline_batch=64,
    chosen=10,
)
_PAPER = Scale(
    sac_steps=1_000_000,
    learning_starts=10_000,
    sac_batch=256,
    snapshots=50,
    rollouts=100,
    log_steps=1_000_000,
    offline_updates=500_000,
    offline_snapshots=50,
    offline_batch=None,
    chosen=10,
)
SCALES = {"smoke": _SMOKE, "small": _SMALL, "paper": _PAPER}
