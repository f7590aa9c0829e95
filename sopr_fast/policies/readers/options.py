"""What every reader is told, and how it asks for what is not installed."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Options:
    name: str
    stochastic: bool = False
    states_count: int | None = None
    action_count: int | None = None
    activation: str | None = None
    squash: str | None = None
    trust: bool = False


def library(module: str, extra: str) -> ModuleType:
    """A module of the extra `extra`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise ImportError(f"reading it needs {name}: pip install 'sopr_fast[{extra}]'") from error


def untrusted(what: str) -> ValueError:
    return ValueError(f"{what} and so can run code: read only with trust=True (--trust), if you trust its maker")
