"""Libraries that only the optional dependencies of the package provide, such as onnxruntime."""

from __future__ import annotations

import importlib
from types import ModuleType


def library(module: str, extra: str, what: str = "reading it") -> ModuleType:
    """Import a module that the optional dependencies `extra` provide, or raise ImportError: `what` needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module.split('.')[0]}: pip install '.[{extra}]' in a clone of sopr_fast"
        ) from error
