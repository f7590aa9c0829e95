"""Scores on the (policies x subsets) grid of independent cells, a tile at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..runtime.devices import put
from ..runtime.limits import tile_bytes
from ..runtime.native import torch_on_one_thread
from .model import ScoringModel
from .subsets import Subsets

_TILE_BYTES = 64 << 20  # at most


@torch.no_grad()
def score_grid(
    model: ScoringModel,
    subsets: Subsets,
    columns: Tensor,  # (P, U, dim_c)
    chosen: Tensor | None = None,
    precision: str | None = None,
    features: Tensor | None = None,  # (P, F)
) -> Tensor:  # (P, S) float32
    """Return scores in eval mode; a cell depends neither on other cells nor on tiling or threads.

    Args:
        model: The scoring model.
        subsets: Clustered subsets, on the device of the model.
        columns: (P, U, dim_c) columns; from the CPU, a tile is copied while another is computed.
        chosen: Indices of the subsets to score on; all by default.
        precision: Operands of matrix products; by default those of the model.
        features: (P, F) features, or None.
    """
    device = subsets.rows.device
    was_training = model.training
    chosen = torch.arange(len(subsets), device=device) if chosen is None else put(chosen, device)
    cell_bytes = 4 * (subsets.offsets.shape[1] - 1) * model.config.width
    size = tile_bytes(_TILE_BYTES)
    policies_at_once = max(1, min(len(columns), size // cell_bytes))
    subsets_at_once = max(1, size // (cell_bytes * policies_at_once))
    scores = columns.new_empty(len(columns), len(chosen), device=device)
    model.eval()
    try:
        with torch_on_one_thread():
            for p in range(0, len(columns), policies_at_once):
                policy_columns = put(columns[p : p + policies_at_once], device)
                policy_features = None if features is None else put(features[p : p + policies_at_once], device)
                for s in range(0, len(chosen), subsets_at_once):
                    tile = chosen[s : s + subsets_at_once]
                    scores[p : p + policies_at_once, s : s + subsets_at_once] = model(
                        subsets.states,
                        policy_columns,
                        subsets.rows[tile],
                        subsets.offsets[tile],
                        precision=precision,
                        features=policy_features,
                    )
    finally:
        model.train(was_training)
    return scores
