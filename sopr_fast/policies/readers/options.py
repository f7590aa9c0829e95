"""Options of every reader, and import of the libraries that some of them need."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Options:
    """Options of the readers; see `sopr_fast.policies.load`.

    Attributes:
        name: Name of the policy, or prefix of the names of a stack.
        stochastic: Act by the distribution.
        states_count: Number of states in the user's data.
        action_count: Number of discrete actions.
        activation: Activation between layers.
        squash: "tanh" or "none" after the last layer.
        trust: Run code in the file.
    """

    name: str
    stochastic: bool = False
    states_count: int | None = None
    action_count: int | None = None
    activation: str | None = None
    squash: str | None = None
    trust: bool = False


def library(module: str, extra: str) -> ModuleType:
    """Import a module that the optional dependencies `extra` provide.

    Raises:
        ImportError: The module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise ImportError(f"reading it needs {name}: pip install 'sopr_fast[{extra}]'") from error


def untrusted(what: str) -> ValueError:
    """Return the error for a file that can run code."""
    return ValueError(f"{what} and so can run code: read only with trust=True (--trust), if you trust its maker")
