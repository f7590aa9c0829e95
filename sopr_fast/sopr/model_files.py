"""Model files: safetensors with a description in JSON; nothing in them is executed."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from .._version import __version__
from ..inputs.policies import Layout
from ..runtime.checks import choice, flag, instance, integer, list_of, mapping, optional, record, text
from ..runtime.tensor_files import by_prefix, check_tensors, load_tensors, reading, save_tensors
from ..runtime.text import printable
from .config import Config
from .model import ScoringModel
from .subsets import Subsets
from .training_policies import TrainingPolicies

_FORMAT = 11

_DESCRIPTION = record(
    {
        "format": integer(),
        "sopr_fast": text,
        "torch": text,
        "config": mapping,
        "layout": record(
            {"kind": choice("action", "gaussian", "discrete"), "action_dim": integer(1), "width": integer(1)}
        ),
        "states_count": optional(integer(1)),
        "training_policies": list_of(text),
        "seed": integer(),
        "state_columns": text,
        "history": mapping,
    }
)
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
    subsets: Subsets | None,
    **plain: Any,
) -> None:
    """Write the arguments of a `Ranker` to one file, whole or not at all; `plain` are numbers and lists of them."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"training_policies.{name}": getattr(training_policies, name) for name in _TRAINING}
    if subsets is not None:
        tensors |= {f"subsets.{name}": value for name, value in subsets.tensors().items()}
    description = {
        "format": _FORMAT,
        "sopr_fast": __version__,
        "torch": torch.__version__,
        "config": model.config.to_dict(),
        "layout": asdict(layout),
        "states_count": None if subsets is None else subsets.states_count,
        "training_policies": training_policies.names,
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
    """Return the arguments of a `Ranker`; every field is checked, and sizes are bounded by the file's."""
    weights, training, subsets = by_prefix(tensors, "model", "training_policies", "subsets")
    size = sum(value.numel() for value in weights.values())
    fields = _DESCRIPTION("description", description)
    outcome = {"best_step": optional(integer()), "collapsed": flag}
    for name, values in fields["history"].items():
        outcome.get(name, list_of(instance(int | float, "a number")))(f"history {name!r}", values)
    config, layout = Config(**fields["config"]), Layout(**fields["layout"])
    names = fields["training_policies"]
    if layout.width != (2 if layout.kind == "gaussian" else 1) * layout.action_dim:
        raise ValueError(f"layout has {layout.width} columns for {layout.action_dim} actions of kind {layout.kind!r}")
    state_dim = check_tensors(training, _TRAINING, {"M": len(names), "C": layout.width})["D"]
    source = training["source"]
    if not len(names) or not len(source) or source[0] < 0 or (source.diff() <= 0).any():
        raise ValueError("training_policies must have names, and a source that ascends from 0")
    input_dim = state_dim + layout.width
    attention = 4 * config.width if config.encoder == "transformer" else 0
    low = config.low_layers * (2 * config.low_feedforward + attention)
    high = config.high_layers * (2 * config.high_feedforward + attention)
    if config.width * (input_dim + low + high) > size:  # a lower bound, before any memory is taken
        raise ValueError(f"config needs more weights than the {size} of the file")
    if wrong := [name for name, value in {**training, **weights}.items() if not value.isfinite().all()]:
        raise ValueError(f"tensor {wrong[0]!r} is not finite")
    model = ScoringModel(input_dim, config)
    if missing := model.state_dict().keys() - weights.keys():  # torch lets a file lack some
        raise ValueError(f"no tensor {min(missing)!r}")
    model.load_state_dict(weights)
    kept = None
    if subsets:
        if fields["states_count"] is None:
            raise ValueError("states_count is missing")
        kept = Subsets.from_tensors(subsets, fields["states_count"])
        if kept.state_dim != state_dim:
            raise ValueError(f"subsets have states of {kept.state_dim} columns, the model reads {state_dim}")
    return {
        "model": model,
        "layout": layout,
        "training_policies": TrainingPolicies(names, **training),
        "subsets": kept,
        **{name: fields[name] for name in ("history", "seed", "state_columns")},
    }
