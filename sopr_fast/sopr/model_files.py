"""Model files: safetensors with a description in JSON; nothing in them is executed."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from .._version import __version__
from ..inputs.policies import Layout
from ..runtime.checks import choice
from ..runtime.tensor_files import by_prefix, check_tensors, load_tensors, reading, restore, save_tensors
from ..runtime.text import printable
from .config import Config
from .model import ScoringModel
from .subsets import Drawing
from .training_policies import TrainingPolicies

_FORMAT = 13

_kind = choice("action", "gaussian", "discrete")
_TRAINING = {
    "states": (torch.float32, "R D"),
    "source": (torch.int64, "R"),
    "columns": (torch.float32, "M R C"),
    "scores": (torch.float64, "M"),
}


def write_model(
    path: str | os.PathLike,
    *,
    model: ScoringModel,
    layout: Layout,
    training_policies: TrainingPolicies,
    subsets: Drawing | None,
    history: dict[str, Any],
    **plain: Any,
) -> None:
    """Write the arguments of a `Ranker` to one file, whole or not at all; `plain` are numbers and text."""
    curves = {name: values for name, values in history.items() if isinstance(values, list)}
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"training_policies.{name}": getattr(training_policies, name) for name in _TRAINING}
    tensors |= {
        f"history.{name}": torch.tensor(values, dtype=torch.float64, device="cpu") for name, values in curves.items()
    }
    if subsets is not None:
        tensors |= {f"subsets.{name}": value for name, value in subsets.tensors().items()}
    description = {
        "format": _FORMAT,
        "sopr_fast": __version__,
        "torch": torch.__version__,
        "config": model.config.to_dict(),
        "layout": layout.kind,
        "states_count": None if subsets is None else subsets.states_count,
        "training_policies": training_policies.names,
        "best_step": history["best_step"],
        "collapsed": history["collapsed"],
        **plain,
    }
    save_tensors(path, tensors, "model", description)


def read_model(path: str | os.PathLike) -> dict[str, Any]:
    """Return the arguments of the `Ranker` in a file; see `ranker.load`."""
    tensors, description = load_tensors(path, "model")
    if description.get("format") != _FORMAT:
        written = printable(f"{description.get('format')}, written by sopr_fast {description.get('sopr_fast')}")
        raise ValueError(
            f"{printable(path)} has format {written}; this version ({__version__}) reads format {_FORMAT}: install "
            "that one, or train the model again"
        )
    with reading(path):
        return _restore(tensors, description)


def _restore(tensors: dict[str, Tensor], description: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a `Ranker`; sizes are bounded by the file's, and other errors are those of `reading`."""
    weights, training, history, kept = by_prefix(tensors, "model", "training_policies", "history", "subsets")
    config, kind = Config(**description["config"]), _kind("layout", description["layout"])
    names = [str(name) for name in description["training_policies"]]
    sizes = check_tensors(training, _TRAINING, {"M": len(names)})
    check_tensors(history, {name: (torch.float64, "T") for name in history})
    source, width = training["source"], sizes["C"]
    if not len(names) or not len(source) or source[0] < 0 or (source.diff() <= 0).any():
        raise ValueError("training_policies must have names, and a source that ascends from 0")
    size, input_dim = sum(value.numel() for value in weights.values()), sizes["D"] + width
    attention = 4 * config.width if config.encoder == "transformer" else 0
    low = config.low_layers * (2 * config.low_feedforward + attention)
    high = config.high_layers * (2 * config.high_feedforward + attention)
    if config.width * (input_dim + low + high) > size:  # a lower bound, before any memory is taken
        raise ValueError(f"config needs more weights than the {size} of the file")
    if wrong := [name for name, value in {**training, **weights}.items() if not value.isfinite().all()]:
        raise ValueError(f"tensor {wrong[0]!r} is not finite")
    model = ScoringModel(input_dim, config)
    restore(model.state_dict(), weights)
    subsets = Drawing.from_tensors(kept, int(description["states_count"])) if kept else None
    if subsets is not None and subsets.states.shape[1] != sizes["D"]:
        raise ValueError(f"subsets have states of {subsets.states.shape[1]} columns, the model reads {sizes['D']}")
    best, curves = description["best_step"], {name: values.tolist() for name, values in history.items()}
    return {
        "model": model,
        "layout": Layout(kind, width // 2 if kind == "gaussian" else width),
        "training_policies": TrainingPolicies(names, **training),
        "subsets": subsets,
        "history": curves
        | {"best_step": None if best is None else int(best), "collapsed": bool(description["collapsed"])},
        "seed": int(description["seed"]),
        "state_columns": str(description["state_columns"]),
    }
