"""`.npy` files of actions in every state of the data."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

from ....runtime.rows import FileRows
from ..arrays import ArrayPolicy
from .options import Options


def read(path: Path, options: Options) -> list[ArrayPolicy]:
    """Open actions, of which rows are read as they are asked for."""
    try:
        actions = FileRows.of_npy(path)
    except (ValueError, EOFError, BadZipFile) as error:
        raise ValueError("damaged, or not an .npy file of a plain array (name archives .npz)") from error
    return [ArrayPolicy(options.name, actions, action_count=options.action_count)]
