"""Scales: sizes of all stages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of all stages; by default those of "small".

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

    sac_steps: int = 500_000
    learning_starts: int = 5_000
    sac_batch: int = 100
    snapshots: int = 50
    rollouts: int = 100
    log_steps: int = 200_000
    offline_updates: int = 10_000
    offline_snapshots: int = 5
    offline_batch: int | None = 64
    chosen: int = 10
    offline_hidden: int | None = None

    @property
    def held_out(self) -> int:
        """Number of policies for validation, and for Test Set II: a fifth each; the others are for training."""
        return max(1, self.snapshots // 5)


SCALES = {
    "smoke": Scale(
        sac_steps=1200,
        learning_starts=400,
        snapshots=15,
        rollouts=2,
        log_steps=400,
        offline_updates=20,
        offline_snapshots=2,
        chosen=3,
    ),
    "small": Scale(),
    "paper": Scale(
        sac_steps=1_000_000,
        learning_starts=10_000,
        sac_batch=256,
        log_steps=1_000_000,
        offline_updates=500_000,
        offline_snapshots=50,
        offline_batch=None,
    ),
}
