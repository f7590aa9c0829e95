"""Files of actions in every state of the data, of which rows are read as they are asked for."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

from ....runtime.rows import FileRows
from ...logs.keys import KEYS, check_is_policy
from ...logs.tables import ParquetArray, parquet_columns
from ..arrays import ArrayPolicy
from .options import Options


def read_npy(path: Path, options: Options) -> list[ArrayPolicy]:
    """Open an `.npy` file."""
    try:
        actions = FileRows(path)
    except (ValueError, EOFError, BadZipFile) as error:
        raise ValueError("damaged, or not an .npy file of a plain array (name archives .npz)") from error
    return [ArrayPolicy(options.name, actions, action_count=options.action_count)]


def read_parquet(path: Path, options: Options) -> list[ArrayPolicy]:
    """Open a parquet file, of which a row group is read at a time."""
    arrays = parquet_columns(path)
    named = [name for name in arrays if name in KEYS["actions"]]
    if len(named) != 1:
        raise ValueError(f"expected one of the columns {', '.join(KEYS['actions'])}; found {', '.join(arrays)}")
    check_is_policy(arrays, ("rewards", "next_states", "terminals"))  # states may accompany actions
    return [ArrayPolicy(options.name, ParquetArray(path, arrays[named[0]]), action_count=options.action_count)]
