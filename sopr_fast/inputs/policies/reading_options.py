"""Options of `sopr_fast.load_policies`, which readers of files take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .actor import ACTIVATIONS

READING = ("activation", "module", "key", "stochastic")


@dataclass(frozen=True)
class ReadingOptions:
    """Options of `sopr_fast.load_policies`, the name of the policy, and the options that some file needed."""

    name: str = ""
    stochastic: bool = False
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
            if (value := getattr(self, key)) not in (None, False) and key not in self.used:
                shown = "…" if key == "module" else repr(value)
                raise ValueError(f"no file needs {key}={shown}: leave it out")
