"""Options of `sopr_fast.load_policies`, which readers of files take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...formats.shared.pickles import RefusedError
from .actor import ACTIVATIONS, Actor
from .policy import Policy

# What the last layer of a network returns. The last three are of discrete actions.
HEADS = ("action", "mean", "mean_log_std", "values", "logits", "probabilities")
DISCRETE = HEADS[3:]
_CHOICES = {"activation": ACTIVATIONS, "squash": ("tanh", "none"), "head": HEADS}
READING = (*_CHOICES, "actor", "layers", "max_action", "stochastic")


@dataclass(frozen=True)
class Options:
    """Options of `sopr_fast.load_policies`, the name of the policy, and the options that some file needed."""

    name: str = ""
    stochastic: bool = False
    action_count: int | None = None
    activation: str | None = None
    squash: str | None = None
    head: str | None = None
    actor: str | None = None
    layers: Sequence[str] | None = None
    max_action: float | None = None
    trust: bool = False
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for key, choices in _CHOICES.items():
            if (value := getattr(self, key)) is not None and value not in choices:
                raise ValueError(f"{key} is {value!r}, expected one of {', '.join(choices)}")

    def take(self, key: str) -> Any:
        """Return an option, and note that a file needs it."""
        self.used.add(key)
        return getattr(self, key)

    def check_used(self) -> None:
        """Raise ValueError if an option was given that no file needed."""
        for key in READING:
            if (value := getattr(self, key)) not in (None, False) and key not in self.used:
                raise ValueError(f"no file needs {key}={value!r}: leave it out")


def own_or_opened(library: str, options: Options, read: Callable[[], Actor], opened: Callable[[], Policy]) -> Policy:
    """Return the actor that this package reads; if it refuses, with trust, the policy that the library opens."""
    try:
        return read()
    except RefusedError as error:
        if not options.trust:
            raise RefusedError(f"{error}; trust=True (--trust) lets {library} open it, code included") from error
    if options.stochastic:
        raise ValueError("what its library opens acts by its means: load it without stochastic")
    return opened()
