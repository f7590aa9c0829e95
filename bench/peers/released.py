"""Checkpoints of the paper's released code."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from sopr_fast import Config
from sopr_fast.sopr.model import ScoringModel


def from_released(state_dict: Mapping[str, Tensor], *, low_heads: int = 2, high_heads: int = 8) -> ScoringModel:
    """Return the scoring model of a released checkpoint of SOPR-T or SOPR-MLP, in eval mode.

    Args:
        state_dict: State dict of the released module.
        low_heads: Attention heads inside a cluster; the checkpoint does not say.
        high_heads: Attention heads over the clusters; the checkpoint does not say.

    Raises:
        ValueError: Parameters are missing or of other shapes; the message names them.
    """
    encoder = "mlp" if "encoder_lowlev.0.weight" in state_dict else "transformer"
    first = "0.weight" if encoder == "mlp" else "layers.0.linear1.weight"
    try:
        width, input_dim = state_dict["fc.0.weight"].shape
        config = Config.paper(
            width=width,
            low_layers=_count_layers(state_dict, "encoder_lowlev", encoder),
            low_heads=low_heads,
            low_feedforward=len(state_dict[f"encoder_lowlev.{first}"]),
            high_layers=_count_layers(state_dict, "encoder_hilev", encoder),
            high_heads=high_heads,
            high_feedforward=len(state_dict[f"encoder_hilev.{first}"]),
            encoder=encoder,
        )
    except KeyError as missing:
        raise ValueError(f"not a released checkpoint: it has no {missing}") from None
    model = ScoringModel(input_dim, config)
    renamed = {f"norm.{name}": model.norm.get_buffer(name) for name in ("count", "mean", "covariance")}
    for old, value in state_dict.items():
        new = _renamed(old, encoder)
        if new is not None:
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
    """Return the name of a released parameter here, or None for one that is registered but unused."""
    stems = {"fc.0": "projection", "fc.1": "norm", "model.0": "score"}
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
    return f"{level}.{rest.removeprefix('layers.')}.{leaf}"
