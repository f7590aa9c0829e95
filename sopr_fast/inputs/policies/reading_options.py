"""Options of `sopr_fast.load_policies`, which readers of files take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...runtime.pickles import RefusedError
from .actor import ACTIVATIONS
from .policy import Policy

READING = ("activation", "module", "key")


@dataclass(frozen=True)
class ReadingOptions:
    """Options of `sopr_fast.load_policies`, the name of the policy, and the options that some file needed."""

    name: str = ""
    action_count: int | None = None
    activation: str | None = None
    module: Any = None
    key: str | None = None
    trust: bool = False
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.activation not in (None, *ACTIVATIONS):
            raise ValueError(f"activation is {self.activation!r}, expected one of {', '.join(ACTIVATIONS)}")

    def take(self, key: str) -> Any:
        """Return an option, and note that a file needs it."""
        self.used.add(key)
        return getattr(self, key)

    def check_used(self) -> None:
        """Raise ValueError if an option was given that no file needed."""
        for key in READING:
            if (value := getattr(self, key)) is not None and key not in self.used:
                shown = "…" if key == "module" else repr(value)
                raise ValueError(f"no file needs {key}={shown}: leave it out")


def own_or_opened(
    library: str, options: ReadingOptions, read: Callable[[], Policy], opened: Callable[[], Policy]
) -> Policy:
    """Return the policy that this package reads; if it refuses, with trust, the policy that the library opens."""
    try:
        return read()
    except RefusedError as error:
        if not options.trust:
            raise RefusedError(f"{error}; trust=True lets {library} open it, code included") from error
    return opened()
