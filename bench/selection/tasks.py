"""The tasks of the study: environments, the algorithms that train on them, and which tasks may choose settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SETS = Path(__file__).parent / "sets"
RETURNS = SETS / "policies.csv"  # of all tasks
SEEDS, SNAPSHOTS = (0, 1), 7
LOG_ROWS = 20_000
OFFLINE_UPDATES = (1_000, 4_000)


@dataclass(frozen=True)
class Task:
    """One environment.

    Attributes:
        environment: Gymnasium's name.
        steps: Environment steps of each algorithm; all run with `SEEDS`.
        logged: Algorithms whose first run is the log; a mixture if there are two.
        chooses: Whether settings may be chosen on the task; the others judge.
        rollouts: Episodes per policy that measure its return.
    """

    environment: str
    steps: dict[str, int]
    logged: tuple[str, ...]
    chooses: bool
    rollouts: int = 50

    @property
    def archive(self) -> Path:
        """File of the task's policies and log."""
        return SETS / f"{self.environment.lower()}.npz"


_OFF, _ON = {"sac": 20_000, "td3": 20_000, "ppo": 100_000}, {"dqn": 60_000, "a2c": 80_000, "ppo": 100_000}
# Choosing and judging tasks alternated when this was written, before any result. MountainCarContinuous-v0, a judging
# task, was then left out: no run reached the goal, so that all its returns were about 0.
TASKS = [
    Task("Pendulum-v1", {"sac": 10_000, "td3": 10_000, "ppo": 100_000}, ("sac",), chooses=True),
    Task("CartPole-v1", {"dqn": 40_000, "a2c": 60_000, "ppo": 60_000}, ("dqn",), chooses=False),
    Task("Acrobot-v1", {"dqn": 60_000, "a2c": 80_000, "ppo": 80_000}, ("dqn", "ppo"), chooses=True),
    Task("LunarLander-v3", _ON, ("dqn", "ppo"), chooses=True, rollouts=20),
    Task("LunarLanderContinuous-v3", _OFF, ("sac",), chooses=False, rollouts=20),
    Task("InvertedDoublePendulum-v5", {"sac": 12_000, "td3": 12_000, "ppo": 80_000}, ("td3",), chooses=True),
    Task("Reacher-v5", {"sac": 12_000, "td3": 12_000, "ppo": 80_000}, ("sac", "ppo"), chooses=False),
    Task("Swimmer-v5", {"sac": 15_000, "td3": 15_000, "ppo": 100_000}, ("ppo", "td3"), chooses=True, rollouts=10),
    Task("BipedalWalker-v3", _OFF, ("sac", "ppo"), chooses=False, rollouts=20),
]
