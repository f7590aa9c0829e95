"""The paper's games under the names that gym, Gymnasium and d4rl give them."""

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
    """A game, its Gymnasium environment, and the log a d4rl name asks for."""

    name: str
    environment: str
    log: str | None = None


def find_game(name: str) -> Game:
    """`hopper`, `Hopper-v2`, `Hopper-v5`, `hopper-medium-v2` and the like.

    Gym's versions below 4, which need the old mujoco-py, and the versions of d4rl's logs all mean Gymnasium's v4,
    the same physics by the maintained bindings.

    Raises:
        ValueError: another name.
    """
    match = _PATTERN.fullmatch(name.lower())
    if match is None:
        raise ValueError(f"no game {name!r}: expected {', '.join(_NAMES)}, or a gym or d4rl name of one")
    game, log, version = match[1], match[2], int(match[3] or 4)
    if log is None and version > 5:
        raise ValueError(f"{name!r}: Gymnasium has versions 4 and 5 of this game")
    return Game(game, f"{_NAMES[game]}-v{5 if log is None and version == 5 else 4}", log)


def make_environment(name: str):
    """A plain Gymnasium environment, time limit included."""
    import warnings

    import gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # v4 is the paper's, whatever is newer
        return gymnasium.make(name, disable_env_checker=True)
