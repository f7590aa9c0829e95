"""Trained models from files: `load`, and `rank` with the model of a path."""

from __future__ import annotations

import os
from typing import Any

from ..ranking.ranking import Ranking
from ..runtime.context import current_device
from .model_files import read_model
from .ranker import Ranker
from .settling import UntilSettled
from .subsets import Subsets
from .training import warn_of_collapse


def load(path: str | os.PathLike) -> Ranker:
    """Load a model that `Ranker.save` wrote onto the device of `sopr_fast.options`; nothing in the file is executed.

    Args:
        path: File to read.

    Raises:
        FileNotFoundError: There is no such file.
        IsADirectoryError: The path is a folder.
        ValueError: The file is truncated, damaged, or of another kind or format.

    Warns:
        CollapsedTrainingWarning: Training of the model collapsed.
    """
    ranker = Ranker(**read_model(path))
    ranker.model.to(current_device())
    if ranker.collapsed:
        warn_of_collapse()
    return ranker


def rank(
    candidates: Any,
    states: Any = None,
    *,
    model: Ranker | str | os.PathLike | None = None,
    subsets: int | str | os.PathLike | UntilSettled | Subsets | None = None,
    seed: int = 0,
) -> Ranking:
    """Rank candidates with a trained model: `Ranker.rank` in one call.

    Args:
        candidates: Policies to rank.
        states: Logged states, or None for the subsets kept with the model.
        model: A `Ranker` or the path of a saved one; None for the path in the environment variable SOPR_FAST_MODEL.
        subsets: See `Ranker.rank`, as for all arguments below.
        seed: Seed of drawing subsets.

    Raises:
        OSError: The model cannot be read.
        TypeError: The model is neither a `Ranker` nor a path.
        ValueError: No model is given either way.
        Exception: See `load` and `Ranker.rank`.

    Warns:
        UserWarning: See `Ranker.rank`.
    """
    return open_model(model).rank(candidates, states, subsets=subsets, seed=seed)


def open_model(model: Ranker | str | os.PathLike | None) -> Ranker:
    """Return a model, or read that of a path; see `rank`. `Ranker.rank` warns of one that collapsed."""
    if isinstance(model, Ranker):
        return model
    if model is not None and not isinstance(model, str | os.PathLike):
        raise TypeError(f"model must be a Ranker or the path of a saved one, got {type(model).__name__}")
    if model:
        return Ranker(**read_model(model))
    path = os.environ.get("SOPR_FAST_MODEL")
    if not path:
        raise ValueError("no model: pass model=… (--model …), or set SOPR_FAST_MODEL to the path of one")
    try:
        return Ranker(**read_model(path))
    except (OSError, ValueError) as error:
        raise type(error)(f"the environment variable SOPR_FAST_MODEL: {error}") from error
