"""How large the sets are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Settings of all stages.

    Attributes:
        sac_steps, learning_starts: environment steps of online training, and those before its first update.
        snapshots: policies kept of it, evenly spaced.
        rollouts: per policy, for its return.
        log_steps: rows of every log.
        offline_updates, offline_snapshots: per offline algorithm and log.
        chosen: policies of Test Set I per log.
        distance_states: states on which policies are compared.
    """

    sac_steps: int
    learning_starts: int
    snapshots: int
    rollouts: int
    log_steps: int
    offline_updates: int
    offline_snapshots: int
    chosen: int
    distance_states: int

    def split_sizes(self) -> tuple[int, int, int]:
        """Policies for training, validation and Test Set II: 30, 10 and 10 of 50."""
        tenth = max(1, self.snapshots // 5)
        return self.snapshots - 2 * tenth, tenth, tenth


SCALES = {
    "smoke": Scale(1200, 400, 5, 2, 400, 20, 2, 3, 64),
    "small": Scale(500_000, 5_000, 50, 100, 200_000, 10_000, 5, 10, 4096),
    "paper": Scale(1_000_000, 10_000, 50, 100, 1_000_000, 500_000, 50, 10, 16384),
}
