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
MASKED = (
    "it chooses among the actions that an environment allows, which the states do not tell: all are taken as allowed. "
    f"If masks matter, pass a callable of states that calls predict with action_masks ({_WHERE})"
)


def check_spaces(observations: Any, actions: Any) -> None:
    """Check that spaces, of Gymnasium or records of them, are of one row of numbers and of one action.

    Raises:
        ValueError: They are not; the message says which callable to pass instead.
    """
    kind, shape = _kind(observations), shape_of(observations)
    if kind in ("Dict", "Tuple", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Graph", "Sequence"):
        raise ValueError(
            f"it reads observations of a {kind} space, but logged states are rows of numbers: pass a callable of "
            f"states that makes such observations of them and calls predict ({_WHERE})"
        )
    if kind == "Box" and len(shape) != 1:
        raise ValueError(
            f"it reads observations of shape {shape}, but logged states are rows of numbers: pass a callable of states "
            f"that reshapes them and calls predict ({_WHERE})"
        )
    if _kind(actions) in ("MultiDiscrete", "Tuple", "Dict"):
        raise ValueError(
            f"it chooses several actions at once, of a {_kind(actions)} space: pass a callable of states that returns "
            f"one index for each combination of them ({_WHERE})"
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
        warn(f"policy {name!r}: {MASKED}")


def _kind(space: Any) -> str:
    """Return the name of the class of a space, or of the class that a record stands for."""
    return str(getattr(space, "source", type(space).__name__)).rpartition(".")[2]
