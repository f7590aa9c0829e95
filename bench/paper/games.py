"""Games of the paper, their logs and environments."""

from __future__ import annotations

LOGS = ("expert", "medium", "medium-replay", "full-replay")

# Version 4 simulates the physics of gym's earlier versions and of d4rl's logs.
GAMES = {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4", "walker2d": "Walker2d-v4"}


def make_environment(name: str):
    """Make a plain Gymnasium environment with its time limit."""
    import warnings

    import gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium calls v4 out of date
        return gymnasium.make(name, disable_env_checker=True)
