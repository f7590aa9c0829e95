"""What each array of a log is called."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# By us, d4rl, Minari and Gymnasium; the first that is there is taken.
KEYS = {
    "states": ("observations", "states"),
    "actions": ("actions",),
    "rewards": ("rewards",),
    "next_states": ("next_observations", "next_states"),
    "terminals": ("terminals", "terminations", "terminated"),
    "timeouts": ("timeouts", "truncations", "truncated"),
    "log_probs": ("infos/action_log_probs", "log_probs"),
}


def find_key(part: str, found: Iterable[str], where: str | Path) -> str:
    """What `part` is called among the names found.

    Raises:
        ValueError: beginning with `where`, it is not among them.
    """
    names = [str(name) for name in found]
    for key in KEYS[part]:
        if key in names:
            return key
    listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    raise ValueError(f"{where}: no array {' or '.join(map(repr, KEYS[part]))}, found {listed or 'nothing'}")
