"""SOPR-T and SOPR-MLP as an estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..inputs.logs import Transitions, load_states
from ..inputs.policies import ArrayPolicy, Layout, Output, Policies, Policy, collect_shared, probe
from ..results.estimates import Estimates
from ..runtime.checkpoints import Checkpoint
from ..runtime.checks import Check, option, optional, short
from ..sopr.config import Config
from ..sopr.fitting import CHECKPOINT, fit_drawn, with_known_returns
from ..sopr.ranker import Ranker
from ..sopr.subsets import Drawing
from .estimator import Request, SupervisedEstimator, Valuation


def _to_config(name: str, value: object) -> Config:
    if not isinstance(value, Config):
        raise ValueError(f"{name} must be a Config, got {short(value)}")
    return value


@dataclass(frozen=True)
class SOPR(SupervisedEstimator):
    """Scores of a model trained on known policies (`sopr_fast.fit`, then `Ranker.rank`).

    Values are the scores, shifted and scaled such that those of the training policies have the mean and standard
    deviation of their returns. So values of models from different folds can be compared, and are roughly returns.

    Attributes:
        config: Options of the model, SOPR-T, or SOPR-MLP with `Config(encoder="mlp")`; None for `Config.small`.

    Diagnostics:
        scores: (P,) scores in the units of the model.
        history: Losses and correlations of each training step.

    Warns:
        CollapsedTrainingWarning: The model scores all policies alike.
        ForeignPolicyWarning: A policy is foreign, so its value is an extrapolation.
    """

    config: Config | None = option(None, optional(Check(_to_config)))  # noqa: RUF009

    def prepare(self, request: Request, values: np.ndarray | None = None) -> Valuation:
        """Draw subsets, and let all policies act in them; see `SupervisedEstimator.prepare`."""
        policies, log, seed = request.policies, request.log, request.seed
        config = self.config or Config.small(len(log))
        drawn = Drawing.draw(load_states(log), config.subsets, size=config.subset_size, seed=seed)
        rows = torch.from_numpy(log.source)[drawn.source] if isinstance(log, Transitions) else drawn.source
        layout = probe(policies, drawn.states, rows, logged=getattr(log, "actions", None))
        acting = _as_arrays(policies, collect_shared(policies, drawn.states, rows, layout), layout)

        count = len(drawn.states)  # as arrays are indexed
        drawn = replace(drawn, source=torch.arange(count, device="cpu"), states_count=count, actions=None)

        def value(tested: np.ndarray, known: np.ndarray, returns: np.ndarray, errors: np.ndarray) -> Estimates:
            training, candidates = ([acting[i] for i in part] for part in (known, tested))
            learned = with_known_returns("training", Policies(training), returns)
            ranker = fit_drawn([learned], drawn, config, seed, Checkpoint(request.checkpoint, *CHECKPOINT))
            ranking = ranker.rank(candidates)
            scale, offset = _units(ranker, returns)
            assert ranking.replicates is not None
            return Estimates(
                ranking.names,
                ranking.scores * scale + offset,
                replicates=ranking.replicates * scale + offset,
                distances=ranking.distances,
                distance_limit=ranking.distance_limit,
                method=self.name,
                diagnostics={"scores": ranking.scores, "history": ranker.history},
            )

        return value


def _as_arrays(policies: list[Policy], columns: Tensor, layout: Layout) -> list[Policy]:
    """Return arrays of actions under the names of P policies, from what they do in U states (P, U, dim_c)."""

    def output(own: Tensor) -> Output:
        mean, std = own[:, : layout.action_dim], own[:, layout.action_dim :]
        kind = "action" if layout.kind == "gaussian" else layout.kind
        return Output("gaussian", mean, std) if std.any() else Output(kind, mean)

    return [ArrayPolicy(policy.name, output(own)) for policy, own in zip(policies, columns, strict=True)]


def _units(ranker: Ranker, returns: np.ndarray) -> tuple[float, float]:
    """Return scale and offset that take scores to the units of the training policies' returns."""
    scores = ranker.training_policies.scores.numpy()
    deviation = float(scores.std())
    scale = 0.0 if ranker.collapsed or deviation == 0 else float(returns.std()) / deviation
    return scale, float(returns.mean()) - scale * float(scores.mean())
