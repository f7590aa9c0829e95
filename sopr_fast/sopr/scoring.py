"""Scores on the (policies x subsets) grid of independent cells, a tile at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from ..native import torch_on_one_thread
from ..runtime.devices import put
from ..runtime.graphs import Replayed
from ..runtime.progress import progress_bar
from ..runtime.resources import tile_bytes
from .model import ScoringModel
from .subsets import Subsets

_TILE_BYTES = 64 << 20  # of clusters' vectors, at most
_COLUMNS_BYTES = 256 << 20  # of the policies of a tile, at most
_CACHED_BYTES = 16 << 20  # instead, on a CPU


@torch.no_grad()
def score_grid(
    model: ScoringModel,
    subsets: Subsets,
    columns: Tensor,  # (P, U, dim_c)
    chosen: Tensor | None = None,
    show: bool = False,
) -> Tensor:  # (P, S) float32
    """Return scores in eval mode on the chosen subsets, by default all, which are on the device of the model.

    A cell depends neither on other cells nor on tiling or threads. From the CPU, a tile of columns is copied while
    another is computed. A progress bar shows the policies if it is to.
    """
    device = subsets.rows.device
    was_training = model.training
    chosen = torch.arange(len(subsets), device=device) if chosen is None else put(chosen, device)
    cell_bytes = 4 * (subsets.offsets.shape[1] - 1) * model.config.width
    size = tile_bytes(_TILE_BYTES, device)
    columns_bytes = tile_bytes(_CACHED_BYTES if device.type == "cpu" else _COLUMNS_BYTES, device)
    policies_at_once = min(size // cell_bytes, columns_bytes // (4 * columns[:1].numel() or 1))
    policies_at_once = max(1, min(len(columns), policies_at_once))
    subsets_at_once = max(1, min(len(chosen), size // (cell_bytes * policies_at_once)))
    scores = columns.new_empty(len(columns), len(chosen), device=device)
    model.eval()
    try:
        with torch_on_one_thread(), progress_bar(len(columns), "ranking", "policy", show=show) as bar:
            for p in range(0, len(columns), policies_at_once):
                some = put(columns[p : p + policies_at_once].contiguous(), device)
                scores[p : p + policies_at_once] = _score(model, subsets, some, chosen, subsets_at_once)
                bar.update(len(some))
    finally:
        model.train(was_training)
    return scores


def _score(model: ScoringModel, subsets: Subsets, columns: Tensor, chosen: Tensor, at_once: int) -> Tensor:
    """Return the scores of some policies, a few subsets at a time, in tensors that stay in place for a CUDA graph."""
    in_place, tile = torch.zeros_like(chosen[:at_once]), columns.new_empty(len(columns), at_once)
    scores = columns.new_empty(len(columns), len(chosen))

    def score(some: Tensor) -> Tensor:
        rows, offsets = subsets.rows[some], subsets.offsets[some]
        return model(subsets.states, columns, rows, offsets, long_tiles=subsets.long_tiles)

    replayed = Replayed(lambda: tile.copy_(score(in_place)), columns.device)
    for s in range(0, len(chosen), at_once):
        some = chosen[s : s + at_once]
        if len(some) < at_once:
            scores[:, s:] = score(some)
        else:
            in_place.copy_(some)
            replayed()
            scores[:, s : s + at_once] = tile
    return scores
