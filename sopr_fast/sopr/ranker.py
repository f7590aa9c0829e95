"""Ranking of candidates by a trained scoring model."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import torch

from ..inputs.logs.stored import StoredStates
from ..inputs.policies import ArrayPolicy, Layout, Policy, load
from ..ranking.ranking import DRAWN, GIVEN, KEPT, Ranking, Training
from ..ranking.warnings import warn_of_candidates, warn_of_scores, warn_of_states
from ..runtime import distributed
from ..runtime.checks import check_integer
from ..runtime.context import current
from ..runtime.timing import Timings
from ..runtime.warn import warn
from .candidates import Candidates
from .columns import Tiles
from .config import Config
from .model import ScoringModel
from .model_files import write_model
from .settling import UntilSettled, to_rule
from .subsets import Drawing, Subsets, as_subsets, read_states
from .training import warn_of_collapse
from .training_policies import TrainingPolicies


class Ranker:
    """Trained scoring model that ranks policies; returned by `sopr_fast.fit` and `sopr_fast.load`.

    Attributes:
        model: `ScoringModel` in eval mode.
        layout: What the model reads of a policy.
        state_dim: Width of a state.
        training_policies: How training policies act on a sample of states, and their scores.
        subsets: Clustered subsets kept with the model, or None.
        history: Loss and validation results of each step, and how training went.
        seed: Seed of the training.
        return_mean: Score in units of return that corresponds to a model output of 0.
        return_scale: Units of return for a model output of 1.
        timings: Seconds of training by stage; files do not keep them.
    """

    def __init__(
        self,
        model: ScoringModel,
        *,
        layout: Layout,
        state_dim: int,
        training_policies: TrainingPolicies,
        subsets: Subsets | None,
        history: dict[str, Any],
        seed: int,
        return_mean: float = 0.0,
        return_scale: float = 1.0,
        timings: dict[str, float] | None = None,
    ) -> None:
        self.model = model.eval()
        self.layout, self.state_dim = layout, state_dim
        self.training_policies, self.subsets = training_policies, subsets
        self.history, self.seed = history, seed
        self.return_mean, self.return_scale = return_mean, return_scale
        self.timings = dict(timings or {})

    def __repr__(self) -> str:
        subsets = "no" if self.subsets is None else len(self.subsets)
        return (
            f"Ranker(trained on {len(self.training_policies.names)} policies in {self.steps} steps, "
            f"states of width {self.state_dim}, {self.layout.kind} policies of action width {self.layout.action_dim}, "
            f"{subsets} subsets kept{', collapsed' if self.collapsed else ''})"
        )

    @property
    def config(self) -> Config:
        """Options of model and training."""
        return self.model.config

    @property
    def steps(self) -> int:
        """Steps that training took, fewer than `config.steps` where it stopped early."""
        return len(self.history.get("loss", ())) or self.config.steps

    @property
    def collapsed(self) -> bool:
        """Whether training ended with equal scores for all policies, so that a ranking means nothing."""
        return bool(self.history.get("collapsed"))

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def rank(
        self,
        candidates: Any,
        states: Any = None,
        *,
        subsets: int | str | os.PathLike | UntilSettled | Subsets | None = None,
        seed: int = 0,
    ) -> Ranking:
        """Rank candidates by their mean score over subsets of the states (paper section 3.2).

        If `torch.distributed` has been initialised, all processes call this method with the same arguments and share
        the work; the result is the same in all. A policy sees each drawn state once, a few of them up to three times
        more as a probe, and the sample of training states kept with the model.

        Args:
            candidates: Policies to rank, see `sopr_fast.load_policies`. Arrays of actions are indexed like
                `states`; their distance to the training policies is known only on the training log, passed again or as
                the subsets kept with the model.
            states: (rows, dim_s) logged states or the path of a file; or clustered `Subsets`, or their file, to use
                again; None for the subsets kept with the model.
            subsets: Number of subsets, by default 5 of given states, or all those kept with the model; "auto" or an
                `UntilSettled` to add subsets until the top of the order is settled; or clustered `Subsets`, or their
                file, to use again.
            seed: Seed of drawing subsets from `states`.

        Raises:
            ImportError: A file needs an extra that is not installed.
            MemoryError: A file needs more memory than is free.
            OSError: A file cannot be read.
            RuntimeError: A policy raised.
            TypeError: An argument has a wrong type.
            ValueError: An argument has a wrong value; the message names the policy, row, option or file.

        Warns:
            UserWarning: States are unlike those of training, in the named columns; or candidates that act differently
                have equal scores.
            CollapsedTrainingWarning: Training of the model collapsed.
            ForeignPolicyWarning: A candidate is foreign: its action distance to the nearest training policy (Eq. 3)
                exceeds twice the upper quartile of such distances among the training policies. Or the distance is
                unknown.
            TrainingPolicyWarning: A candidate acts as a training policy does.
        """
        seed = check_integer("seed", seed, 0)
        device = current().device or self.device
        subsets = as_subsets(subsets) or subsets
        rule, timings = to_rule(subsets), Timings()
        with timings.stage("drawing"):
            log, subsets = _read_states(states, subsets)
            counts = [] if rule is None else rule.counts(len(self.subsets) if log is None and self.subsets else None)
            chosen = self._subsets(log, counts[0] if counts else subsets, seed)
        drawn = chosen.to("cpu")
        action_count = self.layout.action_dim if self.layout.kind == "discrete" else None
        loaded = load(candidates).for_log(drawn.states_count, action_count)
        policies, names = list(loaded.values()), list(loaded)
        same_log = self._is_comparable(policies, log, subsets)
        distributed.current().check_same(
            options=[rule, seed, current().precision, current().batch_size],
            names_of_policies=names,
            states=drawn.states,
            subsets=drawn.rows,
            **self.model.state_dict(),
        )
        grid = Candidates(policies, self.layout, timings)
        tiles = grid.act(drawn)
        with timings.stage("policies"):
            to_training, among, same = self.training_policies.distances(policies, self.layout, same_log=same_log)
        model = self.model if device == self.device else copy.deepcopy(self.model).to(device)

        scores, settled = self._scores(grid, tiles, model, chosen), None
        if rule is not None:
            for count in counts:
                if count > scores.shape[1]:
                    with timings.stage("drawing"):
                        chosen = self._subsets(log, count, seed, first=scores.shape[1])
                    tiles = grid.act(chosen.to("cpu"))
                    scores = np.concatenate([scores, self._scores(grid, tiles, model, chosen)], 1)
                if settled := rule.is_settled(scores, len(counts)):
                    break
        ranking = Ranking.from_subsets(
            names,
            scores,
            distances=to_training.min(1),
            distance_limit=self.training_policies.distance_limit,
            in_training=same.tolist(),
            settled=settled,
            timings=dict(timings),
            training=self._training_of(to_training, among),
            settings={
                "subsets": scores.shape[1],
                "seed": seed,
                "precision": current().precision or self.config.precision,
                "source": GIVEN if isinstance(subsets, Subsets) else KEPT if log is None else DRAWN,
            },
        )
        if self.collapsed:
            warn_of_collapse()
        training = self.training_policies
        if chosen is not self.subsets:
            warn_of_states(drawn.states, training.states)
        warn_of_scores(names, scores, to_training, float(np.ptp(training.scores.numpy())))
        warn_of_candidates(ranking.names, ranking.distances, ranking.distance_limit, ranking.in_training)
        return ranking

    def _scores(self, grid: Candidates, tiles: Tiles, model: ScoringModel, chosen: Drawing | Subsets) -> np.ndarray:
        """Return (P, S) float64 scores in the units that `return_mean` and `return_scale` give them."""
        scores = grid.scores(tiles, model, chosen) * self.return_scale + self.return_mean
        if not np.isfinite(scores).all():
            raise ValueError("the model gives scores that are not finite: its training failed")
        return scores

    def _training_of(self, distances: np.ndarray, among: np.ndarray | None) -> Training:
        """Return what a ranking keeps of the training.

        Args:
            distances: (P, M) action distances of the candidates to the training policies.
            among: (P, P) action distances among the candidates, or None.
        """
        return Training(
            names=list(self.training_policies.names),
            scores=self.training_policies.scores.numpy().copy(),
            distances=distances,
            between=self.training_policies.between.copy(),
            among=among,
            history=copy.deepcopy(self.history),
            settings={"seed": self.seed, **self.config.to_dict()},
        )

    def save(self, path: str | os.PathLike, *, subsets: bool = True) -> None:
        """Write the model to one safetensors file, whole or not at all; of several processes, only process 0 writes.

        Args:
            path: File to write.
            subsets: Write the clustered subsets as well, so that `rank` needs no states.

        Raises:
            OSError: The file cannot be written.
        """
        if distributed.current().rank:
            return
        write_model(
            path,
            model=self.model,
            layout=self.layout,
            state_dim=self.state_dim,
            training_policies=self.training_policies,
            subsets=self.subsets if subsets else None,
            history=self.history,
            seed=self.seed,
            return_mean=self.return_mean,
            return_scale=self.return_scale,
        )

    def _subsets(self, log: StoredStates | None, subsets: Any, seed: int, *, first: int = 0) -> Drawing | Subsets:
        """Return the subsets to score on; those before `first` have been scored on already."""
        if isinstance(subsets, Subsets):
            if log is not None:
                raise ValueError("give states or clustered subsets, not both")
            self._check_width(subsets.state_dim)
            self._check_clusters(subsets.offsets.shape[1] - 1)
            self._warn_of_size(subsets)
            return subsets
        if log is None:
            if self.subsets is None:
                raise ValueError("no subsets are kept with this model: pass the log as states=… (--states …)")
            if subsets is None:
                return self.subsets
            if check_integer("subsets", subsets, 1) > len(self.subsets):
                raise ValueError(
                    f"cannot take {subsets} subsets: there are {len(self.subsets)} kept with the model; pass the log "
                    "as states=… (--states …) to draw more"
                )
            return self.subsets.take(subsets, first=first)
        self._check_width(log.shape[1])
        remedy = ": the model was trained on subsets of that size and needs at least as many states"
        count = 5 if subsets is None else check_integer("subsets", subsets, 1)
        return Drawing.draw(log, count - first, size=self.config.subset_size, seed=seed, first=first, remedy=remedy)

    def _is_comparable(
        self,
        policies: list[Policy],
        log: StoredStates | None,
        subsets: Any,
    ) -> bool:
        """Return whether arrays of actions, if any, belong to the training log, so that their distance is known."""
        if not any(isinstance(policy, ArrayPolicy) for policy in policies):
            return True
        if log is None:
            return subsets is self.subsets or not isinstance(subsets, Subsets)
        training = self.training_policies
        return log.has_rows(training.source.numpy(), training.states.numpy())

    def _check_width(self, width: int) -> None:
        if width != self.state_dim:
            raise ValueError(f"states have {width} columns, the model was trained on {self.state_dim}")

    def _warn_of_size(self, subsets: Subsets) -> None:
        given = subsets.rows.shape[1], subsets.offsets.shape[1] - 1
        trained = self.config.subset_size, self.config.clusters
        if given != trained:
            warn(
                f"subsets have {given[0]} states in {given[1]} clusters, but the model was trained on subsets of "
                f"{trained[0]} states in {trained[1]} clusters: scores and errors may be others than on such subsets"
            )

    def _check_clusters(self, count: int) -> None:
        if self.config.score == "sort" and count != self.config.clusters:
            raise ValueError(
                f"subsets have {count} clusters, but a model with score='sort' needs the {self.config.clusters} it was "
                "trained with"
            )


def _read_states(states: Any, subsets: Any) -> tuple[StoredStates | None, Any]:
    """Return the logged states, or None, and the subsets to score on, which may be given in place of states."""
    given = None if states is None else read_states(states)
    if not isinstance(given, Subsets):
        return given, subsets
    if subsets is not None:
        raise ValueError(
            "subsets are given twice: clustered Subsets in place of states are all used; leave subsets= out, or pass "
            "fewer by their take(count) (--states, --subsets)"
        )
    return None, given
