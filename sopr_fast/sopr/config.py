"""The settings of the scoring model and its training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ..runtime.checks import check_integer, check_number

_CHOICES = {
    "loss": ("pairwise", "listwise", "mse"),
    "encoder": ("transformer", "mlp"),
    "score": ("mean", "sort"),
    "input_norm": ("batch", "none"),
    "precision": ("fp32", "bf16"),
    "training_precision": ("fp32", "bf16"),
    "validation_metric": ("rank_correlation", "loss"),
}
_AT_LEAST_ONE = (
    "width",
    "low_layers",
    "low_heads",
    "low_feedforward",
    "high_layers",
    "high_heads",
    "high_feedforward",
    "subset_size",
    "clusters",
    "subsets",
    "steps",
    "kmeans_iterations",
    "kmeans_restarts",
    "validation_subsets",
)
_LEAST = dict.fromkeys(_AT_LEAST_ONE, 1) | {"warmup_steps": 0}
_NUMBERS = ("dropout", "tie_margin", "learning_rate", "gradient_clip", "action_noise")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of SOPR-T, by default those of its paper (appendix A.1) and released code, but for `warmup_steps` and
    `gradient_clip`, which neither has.

    Attributes:
        width: features of a token and of a cluster vector.
        low_layers, low_heads, low_feedforward: the encoder inside each cluster (paper section 3.1, step 3).
        high_layers, high_heads, high_feedforward: the encoder over the clusters of a policy (step 4).
        dropout: probability, in training only.
        encoder: "transformer" (SOPR-T) or "mlp" (SOPR-MLP, section 4.4).
        input_norm: batch norm after the input projection ("batch") or none ("none").
        score: linear map of the mean cluster vector ("mean"), or of the sorted scores of the clusters ("sort").
        class_token: a learned token before the cluster vectors; the score is the mean of its output.
        subset_size: states in a subset. clusters: k-means clusters in it.
        subsets: subsets to train on, cycled; with as many as `steps`, every step has a new one.
        kmeans_iterations, kmeans_restarts: limits of the clustering.
        steps: updates; each scores all training policies on one subset.
        loss: "pairwise" (section 3.2), "listwise" (ListNet) or "mse" (on standardised returns).
        tie_margin: pairs whose returns differ by at most this count as equal (label 0.5); in return units.
        learning_rate: of Adam. warmup_steps: steps of its linear rise.
        gradient_clip: largest norm of the gradient; 0 for no limit.
        action_noise: standard deviation of normal noise added to the columns in training.
        validation_subsets: random subsets the validation policies are scored on after each step.
        validation_metric: what chooses the weights kept: "rank_correlation" or "loss" (the latest best).
        precision: operands of matrix products when scoring: "fp32" or "bf16" (fp32 where the processor has none,
            on a GPU and for the MLP).
        training_precision: the same when training.
        action_count: number of discrete actions, where policies return their indices.

    Numbers may be numpy's; they are kept as Python's.

    Raises:
        ValueError: names the option at fault.
    """

    width: int = 64
    low_layers: int = 2
    low_heads: int = 2
    low_feedforward: int = 128
    high_layers: int = 6
    high_heads: int = 8
    high_feedforward: int = 512
    dropout: float = 0.1
    encoder: str = "transformer"
    input_norm: str = "batch"
    score: str = "mean"
    class_token: bool = False
    subset_size: int = 16384
    clusters: int = 256
    subsets: int = 200
    kmeans_iterations: int = 300
    kmeans_restarts: int = 1
    steps: int = 200
    loss: str = "pairwise"
    tie_margin: float = 0.0
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    gradient_clip: float = 1.0
    action_noise: float = 0.0
    validation_subsets: int = 3
    validation_metric: str = "rank_correlation"
    precision: str = "fp32"
    training_precision: str = "fp32"
    action_count: int | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose {' or '.join(map(repr, choices))}")
        for name, least in _LEAST.items():
            self._keep(name, check_integer(name, getattr(self, name), least))
        if self.action_count is not None:
            self._keep("action_count", check_integer("action_count", self.action_count, 2))
        for name in _NUMBERS:
            self._keep(name, check_number(name, getattr(self, name)))
        if self.class_token not in (False, True):
            raise ValueError(f"class_token must be True or False, got {self.class_token!r}")
        self._keep("class_token", bool(self.class_token))
        if self.dropout >= 1:
            raise ValueError(f"dropout must be below 1, got {self.dropout}")
        if self.learning_rate == 0:
            raise ValueError("learning_rate must be above 0")
        for level in ("low", "high"):
            heads = getattr(self, f"{level}_heads")
            if self.encoder == "transformer" and self.width % heads:
                raise ValueError(f"width {self.width} is not a multiple of {level}_heads {heads}")
        if self.clusters > self.subset_size:
            raise ValueError(f"clusters {self.clusters} is more than subset_size {self.subset_size}")
        if self.class_token and (self.encoder == "mlp" or self.score == "sort"):
            raise ValueError('class_token needs encoder="transformer" and score="mean"')

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """Every option by name, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """The options that `to_dict` gave; those left out have their defaults.

        Raises:
            ValueError: an unknown option, or a value that is refused.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown option {', '.join(unknown)}")
        return cls(**values)
