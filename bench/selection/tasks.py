"""The tasks of the study: environments, the algorithms that train on them, and which tasks may choose settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SETS = Path(__file__).parent / "sets"
LOGS = ("replay", "mixture")
SEEDS, SNAPSHOTS = (0, 1), 7
LOG_ROWS = 20_000
OFFLINE_UPDATES = (1_000, 4_000)


@dataclass(frozen=True)
class Task:
    """One environment.

    Attributes:
        environment: Gymnasium's name.
        steps: Environment steps of each algorithm; all run with `SEEDS`.
        logged: The first run of the first algorithm fills the log "replay", the first runs of both the log "mixture".
        offline: Log on which offline policies are trained.
        chooses: Whether settings may be chosen on the task; the others judge.
        rollouts: Episodes per policy that measure its return.
        options: Options of all algorithms, which replace those of `make.ALGORITHMS`; `action_noise` is the standard
            deviation of noise that is added to actions while training, and lasts for some 20 steps.
    """

    environment: str
    steps: dict[str, int]
    logged: tuple[str, str]
    offline: str
    chooses: bool
    rollouts: int = 50
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the task's folders."""
        return self.environment.lower()


_CONTINUOUS = {"sac": 20_000, "td3": 20_000, "ppo": 100_000}
_DISCRETE = {"dqn": 60_000, "a2c": 80_000, "ppo": 100_000}
_JAX = {"sbx_tqc": 30_000, "sbx_td3": 30_000, "ppo": 100_000}
_LONG = {"sbx_tqc": 50_000, "sbx_td3": 50_000, "ppo": 200_000}
_FEW = _JAX | {"sbx_tqc": 20_000, "sbx_td3": 20_000}
# The first eight tasks were seen while settings were chosen. The others were not, and were made after that.
TASKS = [
    Task("Pendulum-v1", {"sac": 10_000, "td3": 10_000, "ppo": 100_000}, ("sac", "ppo"), "replay", chooses=True),
    Task("CartPole-v1", {"dqn": 40_000, "a2c": 60_000, "ppo": 60_000}, ("dqn", "ppo"), "replay", chooses=True),
    Task("Acrobot-v1", {"dqn": 60_000, "a2c": 80_000, "ppo": 80_000}, ("dqn", "ppo"), "mixture", chooses=True),
    Task("Reacher-v5", {"sac": 12_000, "td3": 12_000, "ppo": 80_000}, ("sac", "ppo"), "mixture", chooses=True),
    Task("LunarLander-v3", _DISCRETE, ("dqn", "ppo"), "mixture", chooses=True, rollouts=20),
    Task("LunarLanderContinuous-v3", _CONTINUOUS, ("sac", "ppo"), "replay", chooses=True, rollouts=20),
    Task("InvertedDoublePendulum-v5", _FEW, ("sbx_td3", "sbx_tqc"), "replay", chooses=True),
    Task("Swimmer-v5", _JAX, ("ppo", "sbx_td3"), "mixture", chooses=True, rollouts=10, options={"gamma": 0.9999}),
    Task("Hopper-v5", _JAX, ("sbx_tqc", "ppo"), "replay", chooses=False, rollouts=20),
    Task(
        "MountainCarContinuous-v0",
        {"sbx_sac": 30_000, "sbx_tqc": 30_000, "sbx_td3": 30_000},
        ("sbx_sac", "sbx_td3"),
        "mixture",
        chooses=False,
        rollouts=20,
        options={"gamma": 0.9999, "action_noise": 0.9},
    ),
    Task("BipedalWalker-v3", _LONG, ("sbx_tqc", "ppo"), "mixture", chooses=False, rollouts=20),
    Task("HalfCheetah-v5", _LONG, ("sbx_tqc", "ppo"), "replay", chooses=False, rollouts=10),
]
