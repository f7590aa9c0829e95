"""Scores on the (policies x subsets) grid of independent cells, a tile at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..runtime.devices import put
from ..runtime.native import torch_on_one_thread
from .model import ScoringModel
from .subsets import Subsets

_TILE_BYTES = 64 << 20


@torch.no_grad()
def score_grid(
    model: ScoringModel,
    subsets: Subsets,
    columns: Tensor,  # (P, U, dim_c)
    chosen: Tensor | None = None,  # indices of subsets, all by default
    precision: str | None = None,  # the model's by default
    features: Tensor | None = None,  # (P, F)
) -> Tensor:  # (P, S) float32, where the model and the subsets are
    """Scores in eval mode; a cell does not depend on the others, on the tiling or on the number of threads.

    Columns and features may be on the CPU, from where a tile at a time is copied while another is computed.
    """
    device = subsets.rows.device
    was_training = model.training
    chosen = torch.arange(len(subsets), device=device) if chosen is None else put(chosen, device)
    cell_bytes = 4 * (subsets.offsets.shape[1] - 1) * model.config.width
    policies_at_once = max(1, min(len(columns), _TILE_BYTES // cell_bytes))
    subsets_at_once = max(1, _TILE_BYTES // (cell_bytes * policies_at_once))
    scores = columns.new_empty(len(columns), len(chosen), device=device)
    model.eval()
    try:
        with torch_on_one_thread():
            for p in range(0, len(columns), policies_at_once):
                seen = put(columns[p : p + policies_at_once], device)
                known = None if features is None else put(features[p : p + policies_at_once], device)
                for s in range(0, len(chosen), subsets_at_once):
                    tile = chosen[s : s + subsets_at_once]
                    scores[p : p + policies_at_once, s : s + subsets_at_once] = model(
                        subsets.states,
                        seen,
                        subsets.rows[tile],
                        subsets.offsets[tile],
                        precision=precision,
                        features=known,
                    )
    finally:
        model.train(was_training)
    return scores
