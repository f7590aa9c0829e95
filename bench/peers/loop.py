"""The released scoring model in plain torch, with one encoder call per cluster: slow peer and independent oracle.

Parameters are named as in a released checkpoint, so its state dict loads unchanged.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTH, DROPOUT = 64, 0.1


class ReleasedModel(nn.Module):
    """SOPR-T or SOPR-MLP as released: scores (P,) of P policies on one clustered subset of N states.

    Args:
        dim_s: Width of a state.
        dim_a: Width of an action.
        encoder: "transformer" or "mlp".
    """

    def __init__(self, dim_s: int, dim_a: int, *, encoder: str = "transformer"):
        super().__init__()
        if encoder not in ("transformer", "mlp"):
            raise ValueError(f"unknown encoder {encoder!r}")
        self.fc = nn.Sequential(nn.Linear(dim_s + dim_a, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
        self.cls_inp = nn.Parameter(torch.randn(WIDTH))  # in every checkpoint, of an option that was never used
        if encoder == "transformer":
            self.encoder_layer_lowlev = _encoder_layer(heads=2, feedforward=128)
            self.encoder_layer_hilev = _encoder_layer(heads=8, feedforward=512)
            self.encoder_lowlev = _encoder(self.encoder_layer_lowlev, 2)
            self.encoder_hilev = _encoder(self.encoder_layer_hilev, 6)
        else:
            self.encoder_lowlev = _mlp(2, feedforward=128)
            self.encoder_hilev = _mlp(6, feedforward=512)
        self.model = nn.Sequential(nn.Linear(WIDTH, 1))
        self.fc_score = nn.Sequential(nn.Linear(256, 1))  # likewise

    def forward(self, states: Tensor, actions: Tensor, clustering: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Return scores (P,).

        Args:
            states: (N, dim_s).
            actions: (P, N, dim_a).
            clustering: Labels (N,), or (rows, offsets), where cluster k is ``rows[offsets[k]:offsets[k + 1]]``. Empty
                clusters are skipped. In training, the batch norm sees only these rows.
        """
        clusters = split(clustering)
        rows = torch.cat(clusters)
        states = states[rows].expand(len(actions), -1, -1)  # (P, T, dim_s)
        x = torch.cat([states, actions[:, rows]], -1)
        x = self.fc(x.flatten(0, 1)).unflatten(0, x.shape[:2])  # (P, T, E)
        parts = x.split([len(cluster) for cluster in clusters], 1)
        pooled = torch.stack([self.encoder_lowlev(part).mean(1) for part in parts], 1)  # (P, K, E)
        return self.score_clusters(pooled)

    def score_clusters(self, pooled: Tensor) -> Tensor:
        """Return scores (P,) for vectors (P, K, E) of the non-empty clusters."""
        return self.model(self.encoder_hilev(pooled)).squeeze(-1).mean(-1)


def split(clustering: Tensor | tuple[Tensor, Tensor]) -> list[Tensor]:
    """Return the state indices of every non-empty cluster, from labels or (rows, offsets)."""
    if isinstance(clustering, Tensor):
        rows, sizes = clustering.argsort(stable=True), clustering.bincount()
        return [cluster for cluster in rows.split(sizes.tolist()) if len(cluster)]
    rows, offsets = clustering
    return [rows[a:b].long() for a, b in pairwise(offsets.tolist()) if b > a]


def _encoder_layer(heads: int, feedforward: int) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, heads, feedforward, DROPOUT, batch_first=True)


def _encoder(layer: nn.TransformerEncoderLayer, count: int) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(layer, count, enable_nested_tensor=False)


def _mlp(blocks: int, feedforward: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(blocks):
        layers += [
            nn.Linear(WIDTH, feedforward),
            nn.Dropout(DROPOUT),
            nn.ReLU(),
            nn.Linear(feedforward, WIDTH),
        ]
    return nn.Sequential(*layers)
