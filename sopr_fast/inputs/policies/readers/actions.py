"""Tables of actions in every state of the data, of which rows are read as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ....runtime.rows import FileRows
from ...logs.keys import KEYS, NUMBERED, check_is_policy, list_names, part_of
from ...logs.tables import ParquetArray, group_numbered, parquet_columns, read_frame
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
    actions = arrays[_name_of_actions(arrays)]
    check_is_policy(arrays, ("rewards", "next_states", "terminals"))  # states may accompany actions
    return [ArrayPolicy(options.name, ParquetArray(path, actions), action_count=options.action_count)]


def of_frame(frame: Any, where: str) -> np.ndarray:
    """Return the columns of actions of a data frame; all columns, in their order, if none has a known name."""
    names = [str(name) for name in frame.columns]
    arrays = {name: [name] for name in names} | group_numbered(names, where)
    if not any(map(part_of, arrays)):
        return frame.to_numpy()
    try:
        return np.asarray(read_frame(frame, where)[_name_of_actions(arrays)])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _name_of_actions(arrays: Mapping[str, list[str]]) -> str:
    """Return the name of the actions among those of arrays, each of one column or of numbered ones."""
    named = [name for name in arrays if name in KEYS["actions"]]
    if len(named) != 1:
        raise ValueError(
            f"expected one of the columns {', '.join(KEYS['actions'])}; found {list_names([*arrays])}; write one table "
            "for each policy, with a row for each state and columns actions_0, actions_1, …"
        )
    numbers = {int(match[2]) for name in arrays if (match := NUMBERED.fullmatch(name)) and match[1] == named[0]}
    if numbers and (arrays[named[0]] == named or numbers != {*range(min(numbers), min(numbers) + len(numbers))}):
        raise ValueError(
            f"columns of {named[0]!r} have the numbers {', '.join(map(str, sorted(numbers)))}: leave only those of the "
            "actions, numbered without gaps"
        )
    return named[0]
