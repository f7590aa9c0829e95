"""Games of the paper, found by the names that gym, Gymnasium and d4rl use."""

from __future__ import annotations

import re
from dataclasses import dataclass

LOGS = ("expert", "medium", "medium-replay", "full-replay")

_NAMES = {"hopper": "Hopper", "halfcheetah": "HalfCheetah", "walker2d": "Walker2d"}
_PATTERN = re.compile(
    r"(?:(?:mujoco|d4rl)/)?(hopper|halfcheetah|walker2d)"
    r"(?:[-/](random|medium-expert|medium-replay|full-replay|medium|expert))?(?:-v(\d+))?"
)


@dataclass(frozen=True)
class Game:
    """A game of the paper.

    Attributes:
        name: "hopper", "halfcheetah" or "walker2d".
        environment: Gymnasium's name of the environment.
        log: Log that a d4rl name contains, or None.
    """

    name: str
    environment: str
    log: str | None = None


def find_game(name: str) -> Game:
    """Find a game by name.

    Gym's versions below 4 and all versions of d4rl's logs map to Gymnasium's v4, which simulates the same physics
    through the maintained bindings.

    Args:
        name: `hopper`, `Hopper-v2`, `Hopper-v5`, `hopper-medium-v2` and the like, in any case.

    Returns:
        The game.

    Raises:
        ValueError: If no game or version has this name.
    """
    match = _PATTERN.fullmatch(name.lower())
    if match is None:
        raise ValueError(f"unknown game {name!r}: expected {', '.join(_NAMES)}, or the gym or d4rl name of one")
    game, log, version = match[1], match[2], int(match[3] or 4)
    if log is None and version > 5:
        raise ValueError(f"unknown version {name!r}: choose version 4 or 5")
    return Game(game, f"{_NAMES[game]}-v{5 if log is None and version == 5 else 4}", log)


def make_environment(name: str):
    """Make a plain Gymnasium environment with its time limit."""
    import warnings

    import gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium calls v4 out of date
        return gymnasium.make(name, disable_env_checker=True)
