"""Scores on the (policies x subsets) grid of independent cells, a tile at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..runtime.devices import put
from ..runtime.graphs import Replayed
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
) -> Tensor:  # (P, S) float32
    """Return scores in eval mode; a cell depends neither on other cells nor on tiling or threads.

    Args:
        model: The scoring model.
        subsets: Clustered subsets, on the device of the model.
        columns: (P, U, dim_c) columns; from the CPU, a tile is copied while another is computed.
        chosen: Indices of the subsets to score on; all by default.
        precision: Operands of matrix products; by default those of the model.
    """
    device = subsets.rows.device
    was_training = model.training
    chosen = torch.arange(len(subsets), device=device) if chosen is None else put(chosen, device)
    cell_bytes = 4 * (subsets.offsets.shape[1] - 1) * model.config.width
    size = tile_bytes(_TILE_BYTES, device)
    policies_at_once = max(1, min(len(columns), size // cell_bytes))
    subsets_at_once = max(1, min(len(chosen), size // (cell_bytes * policies_at_once)))
    scores = columns.new_empty(len(columns), len(chosen), device=device)
    model.eval()
    try:
        with torch_on_one_thread():
            for p in range(0, len(columns), policies_at_once):
                policy_columns = put(columns[p : p + policies_at_once], device)
                tile = _Tile(model, subsets, policy_columns, precision, subsets_at_once)
                for s in range(0, len(chosen), subsets_at_once):
                    some = slice(s, s + subsets_at_once)
                    scores[p : p + policies_at_once, some] = tile.scores(chosen[some])
    finally:
        model.train(was_training)
    return scores


class _Tile:
    """Scores of some policies on a few subsets at a time, in tensors that stay in place for a CUDA graph."""

    def __init__(
        self,
        model: ScoringModel,
        subsets: Subsets,
        columns: Tensor,
        precision: str | None,
        size: int,
    ) -> None:
        self._model, self._subsets, self._columns = model, subsets, columns
        self._options = {"precision": precision, "long_tiles": subsets.long_tiles}
        device = subsets.rows.device
        self._chosen = torch.zeros(size, dtype=torch.int64, device=device)
        self._scores = columns.new_empty(len(columns), size)
        self._replayed = Replayed(self._compute, device)

    def scores(self, chosen: Tensor) -> Tensor:
        """Return scores on the chosen subsets; the next call overwrites them."""
        if len(chosen) < len(self._chosen):
            return self._run(chosen)
        self._chosen.copy_(chosen)
        self._replayed()
        return self._scores

    def _compute(self) -> None:
        self._scores.copy_(self._run(self._chosen))

    def _run(self, chosen: Tensor) -> Tensor:
        rows, offsets = self._subsets.rows[chosen], self._subsets.offsets[chosen]
        return self._model(self._subsets.states, self._columns, rows, offsets, **self._options)
