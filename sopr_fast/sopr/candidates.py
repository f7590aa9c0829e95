"""Candidates on the (policies x subsets) grid of scores, which the processes of a group share."""

from __future__ import annotations

import numpy as np
import torch

from ..inputs.policies import Layout, Policy
from ..runtime import distributed
from ..runtime.context import current
from ..runtime.progress import progress_bar
from ..runtime.timing import Timings
from .columns import Tiles
from .model import ScoringModel
from .scoring import score_grid
from .subsets import Drawing, Subsets


class Candidates:
    """P policies, which act in drawn states as many at a time as fit into memory.

    Args:
        policies: The policies, which all processes know.
        layout: What the model reads of a policy.
        timings: To which acting ("policies"), clustering and scoring ("encoding") add their seconds.
    """

    def __init__(self, policies: list[Policy], layout: Layout, timings: Timings) -> None:
        self._group = distributed.current()
        self._own = policies[self._group.part(len(policies))]
        self._layout, self._timings = layout, timings

    def act(self, drawn: Drawing | Subsets) -> Tiles:
        """Let the policies of this process act in the drawn states, at once or when they are scored, see `Tiles`.

        Args:
            drawn: The drawn states, on the CPU.

        Raises:
            OSError: A table of actions cannot be read.
            RuntimeError: A policy raised.
            ValueError: A policy returned something else than its layout.
        """
        with self._timings.stage("policies"):
            return Tiles(self._own, drawn, self._layout)

    def scores(self, tiles: Tiles, model: ScoringModel, chosen: Drawing | Subsets) -> np.ndarray:
        """Return the model's scores of all candidates on each subset, (P, S) float64, in every process.

        Args:
            tiles: What `act` returned for the drawn states.
            model: The scoring model, on the device that clusters and scores.
            chosen: The subsets of the drawn states, which are clustered if they are not yet.
        """
        with self._timings.stage("clustering"):
            subsets = chosen.clustered(model.config, next(model.parameters()).device)
        parts = [torch.empty(0, len(subsets), dtype=torch.float32, device=subsets.rows.device)]
        with progress_bar(len(tiles.policies), "ranking", "policy") as bar:
            for tile in tiles:
                with self._timings.stage("policies"):
                    columns = tiles.columns(tile)
                with self._timings.stage("encoding"):
                    parts.append(score_grid(model, subsets, columns, precision=current().precision))
                bar.update(len(columns))
        with self._timings.stage("encoding"):
            return self._group.gather(torch.cat(parts).cpu()).double().numpy()
