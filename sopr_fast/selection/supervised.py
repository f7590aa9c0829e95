"""Supervised methods that value many folds of policies from one drawing of states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..data.states import as_states
from ..estimators import Estimates
from ..policies import collect, probe
from ..sopr.config import Config
from ..sopr.losses import Objective
from ..sopr.scoring import score_grid
from ..sopr.subsets import Drawing
from ..sopr.training import Examples, train
from .folds import Fold
from .workspace import Workspace

_SCORED_SUBSETS = 5


@dataclass(frozen=True)
class SharedSOPR:
    """SOPR-T or SOPR-MLP, trained anew for every fold on subsets that are drawn and clustered once.

    Attributes:
        config: Settings of the model and its training.
    """

    config: Config
    supervised = True
    needs_rewards = False

    def estimate(self, policies: Any, log: Any, **_: Any) -> Estimates:
        raise NotImplementedError

    def folds(self, workspace: Workspace, returns: np.ndarray, folds: list[Fold], *, seed: int, progress: bool) -> Any:
        """Yield each fold's (T,) values of its test policies, in units of the returns.

        The scores of a model are mapped linearly so that its training policies have the mean and the standard deviation
        of their returns: scores of different models become comparable.
        """
        config = self.config
        states = workspace.states
        size = min(config.subset_size, len(states))
        if size < config.subset_size:
            config = Config(**{**config.to_dict(), "subset_size": size, "clusters": min(config.clusters, size)})
        drawing = Drawing.draw(as_states(states), config.subsets, size=config.subset_size, seed=seed)
        source = torch.from_numpy(workspace.source)[drawing.source]
        layout = probe(workspace.policies, drawing.states, source)
        columns = collect(workspace.policies, drawing.states, source, layout)
        subsets = drawing.clustered(config, torch.device("cpu"), progress=progress)
        first = torch.arange(min(_SCORED_SUBSETS, len(subsets)))
        for fold in folds:
            known = returns[fold.train]
            mean, scale = float(known.mean()), float(known.std())
            objective = Objective.from_returns(config, known, mean, scale or 1.0)
            examples = Examples(columns[fold.train], None, known, objective)
            model, _ = train(subsets, examples, validation=None, config=config, seed=seed, progress=progress)
            asked = np.concatenate([fold.train, fold.test])
            scores = score_grid(model, subsets, columns[asked], first).double().mean(1).numpy()
            learned, scores = np.split(scores, [len(fold.train)])
            spread = float(learned.std())
            yield mean + scale * (scores - learned.mean()) / (spread or 1.0)


@dataclass(frozen=True)
class Nearest:
    """Return of the nearest known policy by action distance (Eq. 3 of the paper)."""

    supervised = True
    needs_rewards = False

    def estimate(self, policies: Any, log: Any, **_: Any) -> Estimates:
        raise NotImplementedError

    def folds(self, workspace: Workspace, returns: np.ndarray, folds: list[Fold], *, seed: int, progress: bool) -> Any:
        """Yield each fold's (T,) returns of the training policies nearest to its test policies."""
        for fold in folds:
            nearest = workspace.distances[np.ix_(fold.test, fold.train)].argmin(1)
            yield returns[fold.train][nearest]
