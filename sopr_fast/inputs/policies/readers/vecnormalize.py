"""Statistics with which Stable-Baselines3's `VecNormalize` standardised a model's observations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....runtime.pickles import SB3_RECORDS, SPACE_RECORDS, RefusedError, read_pickle
from ....runtime.text import printable
from ....runtime.warn import warn
from ...logs.keys import list_names
from ..actor import Standardisation


def find_statistics(path: Path, settings: dict[str, Any]) -> Path | None:
    """Return the file of statistics of the model at `path`, or None if there is none.

    It is the model's own by name, else that of its folder, else the only one in the folders next to it. A model whose
    settings say that it was trained without `VecNormalize` has only those of its name.

    Raises:
        ValueError: Several folders next to the model have statistics.

    Warns:
        UserWarning: There is none, and the model was trained with `VecNormalize`; or the folder has some, and the model
            was trained without, or the names do not say that they belong to it.
    """
    checkpoint = re.fullmatch(r"(.*)_(\d+_steps)", path.stem)  # as CheckpointCallback names them
    names = [f"{checkpoint[1]}_vecnormalize_{checkpoint[2]}.pkl"] if checkpoint else []
    own = _first(path.parent, [*names, f"{path.stem}_vecnormalize.pkl", f"{path.stem}/vecnormalize.pkl"])
    if own is not None:
        return own
    shared = _first(path.parent, ["vecnormalize.pkl", "vec_normalize.pkl"])
    target = f"copy the statistics that belong to it to {printable(path.stem)}_vecnormalize.pkl next to it"
    was_normalised = _was_normalised(settings)
    if was_normalised is False:
        if shared is not None:
            warn(
                f"{printable(path)}: the model was trained without VecNormalize, so it reads states as they are, not "
                f"standardised by {shared.name} of its folder; {target}, or move that file to another folder"
            )
        return None
    below = sorted(file for file in path.parent.glob("*/vecnormalize.pkl") if file.is_file())
    if shared is None and len(below) > 1:
        files = ", ".join(str(file.relative_to(path.parent)) for file in below)
        raise ValueError(f"several statistics could belong to it: {files}; {target}")
    statistics = shared or next(iter(below), None)
    others = sorted(file.name for file in path.parent.glob("*.pkl") if is_statistics(file))
    if statistics is None and (was_normalised or others):
        why = "the model was trained with VecNormalize" if was_normalised else f"its folder has {list_names(others)}"
        warn(
            f"{printable(path)}: states are not standardised, though {why}; {target}, unless your states are "
            "standardised already"
        )
    return statistics


def is_statistics(path: Path) -> bool:
    """Return whether a file has "vecnormalize" in its name, in any case and with any separators."""
    return "vecnormalize" in re.sub(r"[^a-z]", "", path.stem.lower())


def _was_normalised(settings: dict[str, Any]) -> bool | None:
    """Return whether the model was trained with `VecNormalize`, or None if its settings do not say it.

    Only then does training keep an observation as the environment gave it; off-policy algorithms always keep one.
    """
    if settings.get("_last_obs") is None or "_last_original_obs" not in settings:
        return None
    if settings["_last_original_obs"] is None:
        return False
    return None if "buffer_size" in settings else True


def _first(folder: Path, names: list[str]) -> Path | None:
    return next((file for name in names if (file := folder / name).is_file()), None)


def read_standardisation(path: Path) -> Standardisation | None:
    """Read a file that `VecNormalize.save` wrote; return None if it leaves observations as they are.

    Raises:
        RefusedError: The statistics are of another class.
        ValueError: The file is damaged.
    """
    try:
        statistics = read_pickle(path, records=(*SPACE_RECORDS, *SB3_RECORDS))
        if not statistics.norm_obs:
            return None
        mean, variance = (
            np.array(getattr(statistics.obs_rms, name), np.float64).reshape(-1) for name in ("mean", "var")
        )
        if not np.isfinite([mean, variance]).all():
            raise ValueError("a mean or variance that is not finite")
        std = np.sqrt(variance + float(statistics.epsilon))
        return Standardisation(torch.from_numpy(mean), torch.from_numpy(std), float(statistics.clip_obs))
    except RefusedError as error:
        raise RefusedError(f"statistics in {path.name}: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"statistics in {path.name}: {error}") from error
