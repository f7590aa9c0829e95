"""The door: whatever people have becomes policies, logs and returns here, once."""

from importlib import import_module
from typing import Any

__all__ = ["logs", "policies", "returns"]


def __getattr__(name: str) -> Any:
    """Import a part when it is first used: logs are read without torch."""
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
