"""Names of the arrays of a log."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...runtime.text import NAME_WIDTH, printable

# Names used by d4rl, Minari, Gymnasium, Stable-Baselines3 and data frames; the first one present is read.
KEYS = {
    "states": ("observations", "states", "obs", "observation", "state"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "next_states": ("next_observations", "next_states", "next_obs", "next_observation", "next_state"),
    "terminals": ("terminals", "terminations", "terminated", "terminal", "dones", "done"),
    "timeouts": ("timeouts", "truncations", "truncated", "timeout"),
    "log_probs": ("infos/action_log_probs", "log_probs"),
}
ALL_KEYS = frozenset(key for keys in KEYS.values() for key in keys)
MIXED_ENDS = ("dones", "done")  # may also mark the steps at which a time limit cut an episode


def find_key(part: str, names: Iterable[str], where: str | Path) -> str:
    """Return the name that a log gives to one of its arrays.

    Args:
        part: Key of `KEYS`.
        names: Names of all arrays of the log.
        where: Beginning of the error message, such as the file's path.

    Raises:
        ValueError: None of the names is one of `part`.
    """
    present = [str(name) for name in names]
    for key in KEYS[part]:
        if key in present:
            return key
    first, *others = KEYS[part]
    raise ValueError(
        f"{where}: no array {first!r} (or {', '.join(others)}); the arrays there are {list_names(present)}"
    )


def check_is_policy(names: Iterable[str], parts: Iterable[str] = KEYS) -> None:
    """Check that a file in the place of a policy's is no log.

    Args:
        names: Names of all arrays in the file.
        parts: Keys of `KEYS` that policies lack.

    Raises:
        ValueError: One of the names is that of such a part.
    """
    present = set(names)
    for key in (key for part in parts for key in KEYS[part]):
        if key in present:
            raise ValueError(
                f"a log (it holds {key!r}), not a policy: move it out of the folder of policies, or name the files"
            )


def list_names(names: list[str]) -> str:
    """Return the first ten names, escaped, and how many follow, for messages."""
    first = ", ".join(printable(name, NAME_WIDTH) for name in names[:10])
    return first + (f" and {len(names) - 10} more" if len(names) > 10 else "") or "none"
