"""The one place where a test is skipped because a library is not installed."""

import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas
import pytest


def needs(library: str, install: str = "make extras") -> ModuleType:
    """Import a library that users need not have, or skip the test: the end of a run lists what was skipped."""
    with warnings.catch_warnings(action="ignore"):
        return pytest.importorskip(library, reason=f"needs {library.split('.')[0]}: {install}", exc_type=ImportError)


def to_parquet(frame: pandas.DataFrame, path: Path, **options: Any) -> None:
    """Write a data frame, or skip the test without pyarrow."""
    needs("pyarrow")
    frame.to_parquet(path, **options)
