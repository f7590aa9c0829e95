"""Checkpoints of the paper's released code."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from .config import Config
from .model import ScoringModel


def from_released(
    state_dict: Mapping[str, Tensor], *, score: str = "mean", low_heads: int = 2, high_heads: int = 8
) -> ScoringModel:
    """The scoring model of a checkpoint of the paper's released code, SOPR-T or SOPR-MLP, in eval mode.

    Args:
        state_dict: of the released module, with its names and shapes.
        score: "mean", "sort" or "class_token": a released checkpoint does not tell.
        low_heads, high_heads: attention heads, which it does not tell either.

    Raises:
        ValueError: parameters are missing or of other shapes (which).
    """
    if score not in ("mean", "sort", "class_token"):
        raise ValueError(f"score is {score!r}; choose 'mean', 'sort' or 'class_token'")
    encoder = "mlp" if "encoder_lowlev.0.weight" in state_dict else "transformer"
    first = "0.weight" if encoder == "mlp" else "layers.0.linear1.weight"
    try:
        width, input_dim = state_dict["fc.0.weight"].shape
        config = Config(
            width=width,
            low_layers=_count_layers(state_dict, "encoder_lowlev", encoder),
            low_heads=low_heads,
            low_feedforward=len(state_dict[f"encoder_lowlev.{first}"]),
            high_layers=_count_layers(state_dict, "encoder_hilev", encoder),
            high_heads=high_heads,
            high_feedforward=len(state_dict[f"encoder_hilev.{first}"]),
            encoder=encoder,
            score="sort" if score == "sort" else "mean",
            class_token=score == "class_token",
            clusters=state_dict["fc_score.0.weight"].shape[1] if score == "sort" else 256,
        )
        renamed = {"class_token": state_dict["cls_inp"].reshape(-1)} if config.class_token else {}
    except KeyError as missing:
        raise ValueError(f"not a released checkpoint: it has no {missing}") from None
    model = ScoringModel(input_dim, config)
    renamed |= {name: value for name, value in model.named_buffers() if name.startswith("rows.")}
    for old, value in state_dict.items():
        new = _renamed(old, encoder)
        if new is not None and new.partition(".")[0] in dict(model.named_children()):
            renamed[new] = value
    try:
        model.load_state_dict(renamed)
    except RuntimeError as error:
        raise ValueError(f"not a released checkpoint: {error}") from None
    return model.eval()


def _count_layers(state_dict: Mapping[str, Tensor], prefix: str, encoder: str) -> int:
    names = [name for name in state_dict if name.startswith(f"{prefix}.") and name.endswith(".weight")]
    if encoder == "mlp":
        return len(names) // 2
    return len({name.split(".")[2] for name in names})


def _renamed(name: str, encoder: str) -> str | None:
    """Our name of a released parameter, None for those that are registered and never used."""
    stems = {
        "fc.0": "projection",
        "fc.1": "norm",
        "model.0": "score",
        "fc_score.0": "sorted_score",
    }
    stem, _, leaf = name.rpartition(".")
    if stem in stems:
        return f"{stems[stem]}.{leaf}"
    root, _, rest = stem.partition(".")
    level = {"encoder_lowlev": "low", "encoder_hilev": "high"}.get(root)
    if level is None:
        return None
    if encoder == "mlp":
        place = int(rest)
        return f"{level}.{place // 4}.{place % 4 // 3}.{leaf}"
    return f"{level}.{rest}.{leaf}"
