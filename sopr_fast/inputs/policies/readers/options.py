"""Options of the readers, and what several readers need: settings in JSON, the error without trust."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..actor import ACTIVATIONS

SETTINGS_BYTES = 8 << 20  # parsed JSON may take 20 times the memory of its text


# What the last layer of a network returns. The last three are of discrete actions.
HEADS = ("action", "mean", "mean_log_std", "values", "logits", "probabilities")
DISCRETE = HEADS[3:]
READING = ("activation", "squash", "head", "actor", "layers", "max_action")  # options for what files do not say


@dataclass(frozen=True)
class Options:
    """Options of the readers: those of `sopr_fast.load_policies`, and the name of the policy or of a stack of them.

    Attributes:
        used: Names of the options that some file needed.
    """

    name: str = ""
    stochastic: bool = False
    action_count: int | None = None
    activation: str | None = None
    squash: str | None = None
    head: str | None = None
    actor: str | None = None
    layers: Sequence[str] | str | None = None
    max_action: float | None = None
    trust: bool = False
    used: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Raise ValueError if an option has a value that it cannot have."""
        for key, choices in (("squash", ("tanh", "none")), ("head", HEADS), ("activation", ACTIVATIONS)):
            if (value := getattr(self, key)) is not None and value not in choices:
                raise ValueError(f"{key} is {value!r}, expected one of {', '.join(choices)}")

    def check_used(self) -> None:
        """Raise ValueError if an option was given that no file needed."""
        for key in READING:
            if (value := getattr(self, key)) is not None and key not in self.used:
                raise ValueError(f"no file needs {key}={value!r}: leave it out")

    def take(self, key: str) -> Any:
        """Return an option, and note that a file needs it."""
        self.used.add(key)
        return getattr(self, key)


def ask(missing: list[str], what: str, seen: str) -> ValueError:
    """Return the error for a file that does not say what these options would."""
    flags = " and ".join(f"{key}=… (--{key.replace('_', '-')} …)" for key in missing)
    more = f"; heads are {', '.join(HEADS)}" if "head" in missing else ""
    if "action_count" in missing:
        more += "; of a network that chooses several actions at once, pass a callable of states instead"
    return ValueError(f"{what} does not say its {' and '.join(missing)}: pass {flags}{more}; {seen}")


def parse_settings(text: str | bytes) -> dict[str, Any]:
    """Return the settings of a policy, a JSON object.

    Raises:
        ValueError: The text is damaged or too long.
    """
    if len(text) > SETTINGS_BYTES:
        raise ValueError(f"its settings take {len(text) / 2**20:.0f} MiB, expected at most {SETTINGS_BYTES >> 20}")
    return json.loads(text)
