"""Settings that a run keeps in YAML next to its checkpoints, where the checkpoint itself does not have them."""

from __future__ import annotations

import re
from pathlib import Path

from ....runtime.files import open_regular
from ..actor import ACTIVATIONS

# Isaac Lab, then Isaac Gym, of the folder of a checkpoint or of the one above it.
_PLACES = ("params/agent.yaml", "agent.yaml", "config.yaml")
_BYTES = 1 << 20
_NAMES = {"swish": "silu", "lrelu": "leaky_relu", "None": "identity", "none": "identity", "null": "identity"}


def read_values(path: Path, key: str) -> set[str]:
    """Return all values that the settings next to a checkpoint give to a key, at any depth; empty without settings.

    Only lines `key: word` are looked at, so that no parser of YAML is needed.
    """
    files = (folder / place for folder in (path.parent, path.parent.parent) for place in _PLACES)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return set()
    with open_regular(file) as stream:
        text = stream.read(_BYTES).decode("utf-8", "replace")
    return set(re.findall(rf"^[ \t-]*{re.escape(key)}:[ \t]*['\"]?([\w.]+)['\"]?[ \t]*(?:#.*)?$", text, re.MULTILINE))


def activation_in(path: Path) -> str | None:
    """Return the activation that the settings next to a checkpoint state, None if they state none or several."""
    values = {_NAMES.get(value, value.lower()) for value in read_values(path, "activation")}
    return values.pop() if len(values) == 1 and values <= set(ACTIVATIONS) else None
