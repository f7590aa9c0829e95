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

    Args:
        path: The model.
        settings: Its settings, which may tell whether it was trained with `VecNormalize`.

    Raises:
        ValueError: Several folders next to the model have statistics.

    Warns:
        UserWarning: There is none, and the model was trained with `VecNormalize`; or the folder has some, and the model
            was trained without, or the names do not say that they belong to it.
    """
    was_normalised = _was_normalised(settings)
    own, shared = _own(path), _first(path.parent, ["vecnormalize.pkl", "vec_normalize.pkl"])
    target = f"{printable(path.stem)}_vecnormalize.pkl"
    if own is not None:
        return own
    if was_normalised is False:
        if shared is not None:
            warn(
                f"{printable(path)}: the model was trained without VecNormalize, so it reads states as they are, not "
                f"standardised by {shared.name} of its folder; if that file belongs to it, copy it to {target} next to "
                f"it, else move it to another folder"
            )
        return None
    statistics = _below(path) if shared is None else shared
    if statistics is None and was_normalised:
        warn(
            f"{printable(path)}: the model was trained with VecNormalize, but has no statistics (vecnormalize.pkl); "
            f"unless your states are standardised already, copy them to {target} next to it"
        )
    elif statistics is None and (others := sorted(f.name for f in path.parent.glob("*.pkl") if is_statistics(f))):
        warn(
            f"{printable(path)}: states are not standardised, though its folder has {list_names(others)}; copy the "
            f"statistics that belong to it to {target} next to it, or move them to another folder"
        )
    return statistics


def is_statistics(path: Path) -> bool:
    """Return whether a file has "vecnormalize" in its name, in any case and with any separators."""
    return "vecnormalize" in re.sub(r"[^a-z]", "", path.stem.lower())


def _was_normalised(settings: dict[str, Any]) -> bool | None:
    """Return whether the model was trained with `VecNormalize`, or None if its settings do not tell.

    Only then does training keep an observation as the environment gave it; off-policy algorithms always keep one.
    """
    if settings.get("_last_obs") is None or "_last_original_obs" not in settings:
        return None
    if settings["_last_original_obs"] is None:
        return False
    return None if "buffer_size" in settings else True


def _own(path: Path) -> Path | None:
    checkpoint = re.fullmatch(r"(.*)_(\d+_steps)", path.stem)  # as CheckpointCallback names them
    names = [f"{checkpoint[1]}_vecnormalize_{checkpoint[2]}.pkl"] if checkpoint else []
    return _first(path.parent, [*names, f"{path.stem}_vecnormalize.pkl", f"{path.stem}/vecnormalize.pkl"])


def _first(folder: Path, names: list[str]) -> Path | None:
    return next((file for name in names if (file := folder / name).is_file()), None)


def _below(path: Path) -> Path | None:
    files = sorted(file for file in path.parent.glob("*/vecnormalize.pkl") if file.is_file())
    if len(files) > 1:
        names = ", ".join(str(file.relative_to(path.parent)) for file in files)
        target = f"{path.stem}_vecnormalize.pkl"
        raise ValueError(f"several statistics could belong to it: {names}; copy the right one to {target} next to it")
    return files[0] if files else None


def read_standardisation(path: Path) -> Standardisation | None:
    """Read a file that `VecNormalize.save` wrote; return None if it leaves observations as they are.

    Raises:
        RefusedError: The statistics are of another class, or of observations by name.
        ValueError: The file is damaged.
    """
    try:
        statistics = read_pickle(path, records=(*SPACE_RECORDS, *SB3_RECORDS))
        if not statistics.norm_obs:
            return None
        if isinstance(statistics.obs_rms, dict):
            raise RefusedError("statistics of a dict of observations")
        mean, variance = (_vector(getattr(statistics.obs_rms, name)) for name in ("mean", "var"))
        return Standardisation(mean, (variance + float(statistics.epsilon)).sqrt(), float(statistics.clip_obs))
    except RefusedError as error:
        raise RefusedError(f"statistics in {path.name}: {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"statistics in {path.name}: {error}") from error


def _vector(values: Any) -> torch.Tensor:
    array = np.array(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError("a mean or variance that is not finite")
    return torch.from_numpy(array)
