"""The door: whatever people have becomes policies, logs and returns here, once."""

from . import logs, policies, returns

__all__ = ["logs", "policies", "returns"]
