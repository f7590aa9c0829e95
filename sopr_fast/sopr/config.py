"""Options of the scoring model and its training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ..runtime.checks import Checked, choice, integer, number, option


@dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """Options of SOPR-T.

    Defaults are those of `Config.paper()`, but for `subset_size`, `clusters`, `subsets`, `steps` and `policy_share`:
    these are the cheapest whose rankings did not differ clearly from the paper's (`docs/how-well-it-ranks.md`).
    NumPy numbers are stored as Python numbers.

    Attributes:
        width: Width of a token and of a cluster vector.
        low_layers: Layers of the encoder inside each cluster (paper section 3.1, step 3).
        low_heads: Attention heads of the encoder inside each cluster; SOPR-MLP has none and ignores it.
        low_feedforward: Feed-forward width of the encoder inside each cluster.
        high_layers: Layers of the encoder over a policy's clusters (paper section 3.1, step 4).
        high_heads: Attention heads of the encoder over a policy's clusters; SOPR-MLP has none and ignores it.
        high_feedforward: Feed-forward width of the encoder over a policy's clusters.
        dropout: Dropout probability in training.
        encoder: "transformer" (SOPR-T) or "mlp" (SOPR-MLP, paper section 4.4).
        subset_size: States in a subset.
        clusters: Clusters in a subset.
        subsets: Subsets to train on, one a step, in turn; with as many as `steps` every step has its own.
        steps: Updates; each scores training policies on one subset.
        policy_share: Share of the training policies that are drawn for a step, at least 4 of each 8; all with
            preferences.
        learning_rate: Learning rate of Adam.
        warmup_steps: Steps in which the learning rate rises linearly.
        gradient_clip: Largest norm of the gradient; 0 for no limit.
        precision: Operands of matrix products when scoring, "fp32" or "bf16"; fp32 if the processor has no bf16,
            if a GPU uses no tensor cores, and for the MLP.

    Raises:
        ValueError: An option has a wrong value, or two contradict each other.
    """

    width: int = option(64, integer(1))
    low_layers: int = option(2, integer(1))
    low_heads: int = option(2, integer(1))
    low_feedforward: int = option(128, integer(1))
    high_layers: int = option(6, integer(1))
    high_heads: int = option(8, integer(1))
    high_feedforward: int = option(512, integer(1))
    dropout: float = option(0.1, number(below=1))
    encoder: str = option("transformer", choice("transformer", "mlp"))
    subset_size: int = option(1024, integer(1))
    clusters: int = option(16, integer(1))
    subsets: int = option(120, integer(1))
    steps: int = option(120, integer(1))
    policy_share: float = option(0.5, number(above=0, most=1))
    learning_rate: float = option(1e-3, number(above=0))
    warmup_steps: int = option(20, integer(0))
    gradient_clip: float = option(1.0, number())
    precision: str = option("fp32", choice("fp32", "bf16"))

    def __post_init__(self) -> None:
        super().__post_init__()
        for level in ("low", "high"):
            heads = getattr(self, f"{level}_heads")
            if self.encoder == "transformer" and self.width % heads:
                raise ValueError(f"width {self.width} is not a multiple of {level}_heads {heads}: change one of them")
        if self.clusters > self.subset_size:
            raise ValueError(f"clusters {self.clusters} is more than subset_size {self.subset_size}: take fewer")

    @classmethod
    def paper(cls, **changes: Any) -> Config:
        """Return the paper's settings (appendix A.1; its released code for what the paper leaves open), with changes.

        Two differ from the released code, which has no warm-up and no limit of the gradient, so that many runs
        collapse: pass `warmup_steps=0, gradient_clip=0` for its values. It keeps the best of ten runs of k-means.
        """
        own = {"subset_size": 16384, "clusters": 256, "subsets": 200, "steps": 200, "policy_share": 1.0}
        return cls(**own | changes)

    @classmethod
    def small(cls, states: int = 512, **changes: Any) -> Config:
        """Return the settings of a small model that trains in seconds, with changes, for so many logged states."""
        own = {"width": 32, "low_layers": 1, "low_feedforward": 64, "high_layers": 2, "high_heads": 4}
        own |= {"high_feedforward": 128, "subset_size": min(512, states), "clusters": min(16, states), "subsets": 20}
        return cls(**own | {"steps": 80, "policy_share": 1.0} | changes)

    def to_dict(self) -> dict[str, Any]:
        """Return every option by name, ready for JSON."""
        return dataclasses.asdict(self)
