"""SOPR-T and SOPR-MLP as estimators."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..inputs.policies import Policy, collect_shared, probe
from ..results.estimates import Estimates
from ..runtime.checks import instance, option
from ..runtime.options import current_device
from ..sopr.config import Config
from ..sopr.fitting import fit
from ..sopr.ranker import Ranker
from ..sopr.subsets import Drawing, Subsets
from .estimator import Request
from .supervised import SupervisedEstimator, as_arrays, read

_CONFIG = Config()
_config = replace(instance(Config, "a Config"), parse=lambda text: Config(**json.loads(text)))


@dataclass(frozen=True)
class SOPR(SupervisedEstimator):
    """Scores of a model trained on known policies (`sopr_fast.fit`, then `Ranker.rank`).

    Values are the scores, shifted and scaled such that the scores of the training policies have the
    mean and standard deviation of their returns. So values of models from different folds can be compared, and are
    roughly returns. With `loss="mse"` values are the scores themselves.

    The value of a policy that is itself known comes from a model that has seen it; use `cross_fit` for such policies.

    Attributes:
        config: Options of the model: SOPR-T by default, SOPR-MLP with `Config(encoder="mlp")`.

    Diagnostics:
        scores: (P,) scores in the units of the model.
        distances: (P,) action distances to the nearest training policies.
        distance_limit: Distance beyond which a policy is foreign.
        foreign: (P,) whether each policy is foreign.
        history: Losses and correlations of each training step.

    Warns:
        CollapsedTrainingWarning: The model scores all policies alike.
        ForeignPolicyWarning: A policy is foreign, so its value is an extrapolation.
    """

    config: Config = option(_CONFIG, _config)  # noqa: RUF009

    @property
    def name(self) -> str:
        """Name of the method, SOPR-T or SOPR-MLP."""
        return "SOPR-MLP" if self.config.encoder == "mlp" else "SOPR-T"

    def prepare(self, policies: Any, log: Any, *, seed: int = 0) -> tuple[list[Policy], Any]:
        """Draw and cluster subsets, and collect the actions of all policies in them; see `Estimator.prepare`."""
        states, (adapted,) = read(log, policies)
        drawn: Drawing | Subsets
        if isinstance(states, Subsets):
            drawn = states.to("cpu")
        else:
            drawn = Drawing.draw(states, self.config.subsets, size=self.config.subset_size, seed=seed)
        layout = probe(adapted, drawn.states, drawn.source, logged=getattr(states, "actions", None))
        columns = collect_shared(adapted, drawn.states, drawn.source, layout)
        subsets = drawn.clustered(self.config, current_device()).to("cpu")
        return as_arrays(adapted, columns, layout), subsets.over_drawn()

    def _evaluate(self, request: Request) -> Estimates:
        options: dict[str, Any] = {"config": self.config, "seed": request.seed, "checkpoint": request.checkpoint}
        ranker = fit(request.known, request.log, request.returns, **options)
        ranking = ranker.rank(request.policies)
        scale, offset = _units(ranker, request.returns)
        assert ranking.replicates is not None
        replicates = ranking.replicates * scale + offset
        replicates[np.array(ranking.foreign, bool)] = np.nan  # how far they err is unknown
        return Estimates(
            ranking.names,
            ranking.scores * scale + offset,
            ranking.standard_errors * scale,
            replicates=replicates,
            method=self.name,
            diagnostics={
                "scores": ranking.scores,
                "distances": ranking.distances,
                "distance_limit": ranking.distance_limit,
                "foreign": ranking.foreign,
                "history": ranker.history,
            },
        )


def _units(ranker: Ranker, returns: np.ndarray) -> tuple[float, float]:
    """Return scale and offset that take scores to the units of the training policies' returns."""
    if ranker.config.loss == "mse":
        return 1.0, 0.0
    scores = ranker.training_policies.scores.numpy()
    deviation = float(scores.std())
    scale = 0.0 if ranker.collapsed or deviation == 0 else float(returns.std()) / deviation
    return scale, float(returns.mean()) - scale * float(scores.mean())
