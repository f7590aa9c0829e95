"""Libraries that only the optional dependencies of the package provide."""

from __future__ import annotations

import importlib
from types import ModuleType


def library(module: str, extra: str, what: str = "reading it") -> ModuleType:
    """Import a module that the optional dependencies `extra` provide.

    Args:
        module: Name of the module.
        extra: Name of the optional dependencies.
        what: What needs it, for the error.

    Raises:
        ImportError: The module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{what} needs {module.split('.')[0]}: pip install '.[{extra}]' in a clone of sopr_fast, or "
            f"pip install 'sopr_fast[{extra}]'"
        ) from error
