"""Model files: safetensors with a description in JSON; nothing in them is executed."""

from __future__ import annotations

import os
from typing import Any

import torch

from .._version import __version__
from ..policies import Layout
from ..runtime.files import by_prefix, load_tensors, save_tensors
from .columns import CriticColumns
from .config import Config
from .model import ScoringModel
from .subsets import Subsets
from .training_policies import TrainingPolicies

_FORMAT = 4


def write_model(
    path: str | os.PathLike,
    *,
    model: ScoringModel,
    layout: Layout,
    state_dim: int,
    training_policies: TrainingPolicies,
    subsets: Subsets | None,
    history: dict[str, Any],
    seed: int,
    return_mean: float,
    return_scale: float,
    critic_columns: CriticColumns | None,
) -> None:
    """Write the arguments of a `Ranker` to one file, whole or not at all; of the critic, only the scale of its values.

    Raises:
        OSError: The file cannot be written.
    """
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {
        "training_policies.states": training_policies.states,
        "training_policies.source": training_policies.source,
        "training_policies.columns": training_policies.columns,
        "training_policies.scores": training_policies.scores,
    }
    if critic_columns is not None:
        tensors |= {"critic.mean": critic_columns.mean, "critic.scale": critic_columns.scale}
    if subsets is not None:
        tensors |= {f"subsets.{name}": value for name, value in subsets.tensors().items()}
    description = {
        "format": _FORMAT,
        "sopr_fast": __version__,
        "torch": torch.__version__,
        "config": model.config.to_dict(),
        "layout": layout.to_dict(),
        "state_dim": state_dim,
        "states_count": None if subsets is None else subsets.states_count,
        "training_policies": training_policies.names,
        "seed": seed,
        "return_mean": return_mean,
        "return_scale": return_scale,
        "feature_count": model.feature_count,
        "history": history,
    }
    save_tensors(path, tensors, "model", description)


def read_model(path: str | os.PathLike) -> dict[str, Any]:
    """Return the arguments of the `Ranker` in a file.

    Raises:
        FileNotFoundError: There is no such file.
        IsADirectoryError: The path is a folder.
        ValueError: The file is truncated, damaged, or of another kind or format.
    """
    tensors, description = load_tensors(path, "model")
    if description.get("format") != _FORMAT:
        raise ValueError(
            f"{path} has format {description.get('format')}, written by sopr_fast {description.get('sopr_fast')}; "
            f"this version ({__version__}) reads format {_FORMAT}"
        )
    weights, training, subsets, critic = by_prefix(tensors, "model", "training_policies", "subsets", "critic")
    try:
        layout = Layout.from_dict(description["layout"])
        input_dim = description["state_dim"] + layout.width + len(critic.get("mean", ()))
        model = ScoringModel(input_dim, Config.from_dict(description["config"]), description["feature_count"])
        model.load_state_dict(weights)
        return {
            "model": model,
            "layout": layout,
            "state_dim": description["state_dim"],
            "training_policies": TrainingPolicies(description["training_policies"], **training),
            "subsets": Subsets(**subsets, states_count=description["states_count"]) if subsets else None,
            "history": description["history"],
            "seed": description["seed"],
            "return_mean": description["return_mean"],
            "return_scale": description["return_scale"],
            "critic_columns": CriticColumns(None, **critic) if critic else None,
        }
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error
