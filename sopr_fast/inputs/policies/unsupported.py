"""Policies that depend on more than one row of numbers: refused or warned of when they are loaded."""

from __future__ import annotations

from typing import Any

from ...runtime.warn import warn

_WHERE = "see 'Policies that need more than a state' in the docs of files"
RECURRENT = "it is recurrent, but logged states are read one by one: pass an array of its actions in every logged state"
SEQUENCE = (
    "it reads the steps before a state, but logged states are read one by one: pass an array of its actions in every "
    "logged state"
)
WORDS = (
    "words: give indices of discrete actions, coded as in the log, such as "
    "numpy.unique(words, return_inverse=True)[1], and pass action_count"
)
_NO_ROWS = ("Dict", "Tuple", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Graph", "Sequence")


def check_spaces(observations: Any, actions: Any) -> None:
    """Check that spaces, of Gymnasium or the names of their classes, are of one row of numbers and of one action.

    Raises:
        ValueError: They are not; the message says which callable to pass instead.
    """
    if (kind := _kind(observations)) in _NO_ROWS:
        raise ValueError(
            f"it reads observations of a {kind} space, but logged states are rows of numbers: pass a callable of "
            f"states that makes such observations of them and calls predict ({_WHERE})"
        )
    if (kind := _kind(actions)) in ("MultiDiscrete", "MultiBinary", "Tuple", "Dict"):
        raise ValueError(
            f"it chooses several actions at once, of a {kind} space: pass a callable of states that returns one index "
            f"for each combination of them ({_WHERE})"
        )


def shape_of(space: Any) -> tuple[int, ...]:
    """Return the shape of a Box space, else (); gym before 0.21 kept it as `shape`, gymnasium as `_shape`."""
    attributes = getattr(space, "__dict__", {})
    shape = attributes.get("_shape", attributes.get("shape"))
    return shape if isinstance(shape, tuple) else ()


def is_recurrent(policy: Any) -> bool:
    """Return whether the object is a recurrent policy of sb3-contrib."""
    return hasattr(policy, "lstm_actor") or hasattr(policy, "lstm_hidden_state_shape")


def warn_of_masks(name: str, policy: Any) -> None:
    """Warn if the class of a policy of sb3-contrib, or its full name, is of those that need masks of actions."""
    if "maskable" in (policy if isinstance(policy, str) else type(policy).__module__):
        warn(
            f"policy {name!r}: it chooses among the actions that an environment allows, which the states do not tell: "
            "all are taken as allowed. If masks matter, pass a callable of states that calls predict with action_masks "
            f"({_WHERE})"
        )


def _kind(space: Any) -> str:
    """Return the name of the class of a space, of a record of it, or of text as in "<class 'gym.spaces.dict.Dict'>"."""
    text = space if isinstance(space, str) else getattr(space, "source", type(space).__name__)
    return str(text).rpartition(".")[2].rstrip("'>")
