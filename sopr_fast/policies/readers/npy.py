"""`.npy` files of actions in every state of the data."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ..arrays import ArrayPolicy
from .options import Options


def read(path: Path, options: Options) -> list[ArrayPolicy]:
    """Read actions, memory-mapped."""
    try:
        actions = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, BadZipFile) as error:
        raise ValueError("damaged, or not an .npy file of plain arrays") from error
    if not isinstance(actions, np.ndarray):
        raise ValueError("an archive of arrays; name it .npz")
    return [ArrayPolicy(options.name, actions, states_count=options.states_count, action_count=options.action_count)]
