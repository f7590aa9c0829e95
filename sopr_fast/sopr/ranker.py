"""A trained scoring model with what it takes to rank: options, subsets, a sample of its training policies."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._version import __version__
from ..data.states import as_states
from ..data.stored import StoredStates
from ..policies import ArrayPolicy, Layout, Policy, as_policies
from ..ranking import ForeignPolicyWarning, Ranking, TrainingPolicyWarning
from ..runtime.checks import check_integer, check_number
from ..runtime.devices import check_device
from ..runtime.files import by_prefix, load_tensors, save_tensors
from ..runtime.progress import progress_bar
from ..runtime.timing import Timings
from ..runtime.warn import warn
from .columns import Tiles
from .config import Config
from .features import CriticColumns, check_critic, read_features
from .model import ScoringModel
from .scoring import score_grid
from .subsets import Drawing, Subsets
from .training import warn_of_collapse
from .training_policies import TrainingPolicies

_FORMAT = 3
_COMPARABLE = "arrays of actions have one on the log of the training and on the subsets kept with the model alone"


class Ranker:
    """Ranks policies by a trained scoring model; made by `sopr_fast.fit` or `sopr_fast.load`.

    Attributes:
        model: `ScoringModel` in eval mode. device: where it is.
        config, seed: what it was trained with.
        layout: what it sees of a policy.
        subsets: the clustered subsets kept with it, or None.
        training_policies: a sample of how the training policies act, and their scores.
        history: losses and correlations of each step, and how training went.
        critic_columns: the critic whose values join each row, or None; a saved model keeps only their scale.
        timings: seconds by stage of the training; not saved.
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
        critic_columns: CriticColumns | None = None,
        timings: dict[str, float] | None = None,
    ) -> None:
        self.model = model.eval()
        self.layout, self.state_dim = layout, state_dim
        self.training_policies, self.subsets = training_policies, subsets
        self.history, self.seed = history, seed
        self.return_mean, self.return_scale = return_mean, return_scale
        self.critic_columns = critic_columns
        self.timings = dict(timings or {})

    @property
    def config(self) -> Config:
        return self.model.config

    @property
    def collapsed(self) -> bool:
        """Whether training ended with equal scores for all policies, so that a ranking means nothing."""
        return bool(self.history.get("collapsed"))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def rank(
        self,
        candidates: Any,
        states: Any = None,
        *,
        subsets: int | Subsets | None = None,
        features: Mapping[str, Any] | None = None,
        critic: Callable[[Tensor, Tensor], Any] | None = None,
        shrinkage: float = 0.0,
        seed: int = 0,
        precision: str | None = None,
        batch_size: int = 16384,
        device: torch.device | str | None = None,
        progress: bool = True,
    ) -> Ranking:
        """Ranks candidates by their mean score over subsets of the states.

        Args:
            candidates: policies, see `sopr_fast.policies.as_policies`; arrays of actions are indexed like `states`.
                How unlike the training policies an array acts is known on the log of the training alone, given again
                or as the subsets kept with the model: elsewhere its distance is nan.
            states: (rows, dim_s) logged states, or the path of a file; None for the subsets kept with the model.
            subsets: how many (5, or all that are kept), or clustered `Subsets` to use again.
            features: the candidates', by name, if the model was trained with features.
            critic: the critic, if the model was trained with one and loaded from a file.
            shrinkage: Share, from 0 (none, as in the paper) to 1, of `TrainingPolicies.shrinkage` by which scores of
                candidates move toward the score of the nearest training policy.
            seed: of drawing subsets from `states`.
            precision: "fp32" or "bf16", by default that of the model's `Config`.
            batch_size: most states shown to a policy at once. Each drawn state is shown once; up to 13 of them as a
                probe, and the remembered sample of the training's states, come on top.
            device: where subsets are clustered and the model computes, by default the model's; policies act where
                they are.
            progress: show bars.

        Raises:
            ImportError, MemoryError: a file needs an extra, or more memory than is free.
            TypeError, ValueError, RuntimeError, OSError: names the policy, row, option or file at fault; before
                clustering, where all actions fit into 1 GiB, but for what a critic answers.

        Warns:
            CollapsedTrainingWarning: Training of the model collapsed.
            ForeignPolicyWarning: a candidate is further from every training policy (Eq. 3) than twice the
                upper quartile of those distances among the training policies, or its distance is not known.
            TrainingPolicyWarning: A candidate acts exactly as a training policy does.
        """
        if precision not in (None, "fp32", "bf16"):
            raise ValueError(f"precision is {precision!r}; choose 'fp32' or 'bf16'")
        if check_number("shrinkage", shrinkage) > 1:
            raise ValueError(f"shrinkage must be from 0 to 1, got {shrinkage}")
        device = self.device if device is None else check_device(device)
        timings = Timings()
        with timings.stage("drawing"):
            log = None if states is None else as_states(states)
            given = self._subsets(log, subsets, seed)
        drawn = given.to("cpu")
        action_count = self.layout.action_dim if self.layout.kind == "discrete" else None
        policies = as_policies(candidates, states_count=drawn.states_count, action_count=action_count)
        names = [policy.name for policy in policies]
        features = self._check_features(features, names)
        critic_columns = self._check_critic(critic)
        same_log = self._is_comparable(policies, log, subsets, shrinkage)
        with timings.stage("policies"):
            tiles = Tiles(policies, drawn, self.layout, batch_size=batch_size, progress=progress)
            distances, nearest = self._nearest(tiles, same_log)
        with timings.stage("clustering"):
            if isinstance(given, Drawing):
                clustered = given.cluster_as(self.config, device, progress=progress)
            else:
                clustered = given.to(device)
        scores = self._score(tiles, clustered, features, critic_columns, precision, timings, progress)
        training = self.training_policies
        weights, nearest_scores = None, None
        if shrinkage > 0:
            weights, nearest_scores = shrinkage * training.shrinkage(distances), training.scores.numpy()[nearest]
        ranking = Ranking.from_subsets(
            names,
            scores,
            shrinkage=weights,
            nearest_scores=nearest_scores,
            distances=distances,
            distance_limit=training.distance_limit,
            in_training=training.are_same(distances, nearest),
            timings=dict(timings),
        )
        if self.collapsed:
            warn_of_collapse()
        _warn_of_foreign(ranking)
        _warn_of_unknown(ranking)
        _warn_of_training(ranking)
        return ranking

    def _score(
        self,
        tiles: Tiles,
        subsets: Subsets,
        features: Tensor | None,
        critic_columns: CriticColumns | None,
        precision: str | None,
        timings: Timings,
        progress: bool,
    ) -> np.ndarray:
        """(P, S) float64, in units of return if the model has them, computed where the subsets are."""
        device = subsets.rows.device
        model = self.model if device == self.device else copy.deepcopy(self.model).to(device)
        scores = []
        with progress_bar(len(tiles.policies), "ranking", "policy", show=progress) as bar:
            for tile in tiles:
                with timings.stage("policies"):
                    columns = tiles.columns(tile)
                    if critic_columns is not None:
                        columns = critic_columns.append(tiles.drawn.states, columns, self.layout)
                with timings.stage("encoding"):
                    of_tile = None if features is None else features[tile]
                    scores.append(score_grid(model, subsets, columns, precision=precision, features=of_tile))
                bar.update(len(columns))
        with timings.stage("encoding"):
            found = torch.cat(scores).cpu().double().numpy() * self.return_scale + self.return_mean
        if not np.isfinite(found).all():
            raise ValueError("the model gives scores that are not finite: its training failed")
        return found

    def _nearest(self, tiles: Tiles, same_log: bool) -> tuple[np.ndarray, np.ndarray]:
        """(P,) each, see `TrainingPolicies.nearest`."""
        options = {"batch_size": tiles.batch_size, "same_log": same_log}
        parts = [self.training_policies.nearest(tiles.policies[tile], self.layout, **options) for tile in tiles]
        distances, nearest = (np.concatenate(part) for part in zip(*parts, strict=True))
        return distances, nearest

    def save(self, path: str | os.PathLike, *, subsets: bool = True) -> None:
        """Writes one safetensors file, whole or not at all; with the clustered subsets unless told otherwise.

        Raises:
            OSError: it cannot be written there.
        """
        training = self.training_policies
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {
            "training_policies.states": training.states,
            "training_policies.source": training.source,
            "training_policies.columns": training.columns,
            "training_policies.scores": training.scores,
        }
        if self.critic_columns is not None:
            tensors |= {"critic.mean": self.critic_columns.mean, "critic.scale": self.critic_columns.scale}
        if subsets and self.subsets is not None:
            tensors |= {f"subsets.{name}": value for name, value in self.subsets.tensors().items()}
        description = {
            "format": _FORMAT,
            "sopr_fast": __version__,
            "torch": torch.__version__,
            "config": self.config.to_dict(),
            "layout": self.layout.to_dict(),
            "state_dim": self.state_dim,
            "states_count": self.subsets.states_count if self.subsets is not None else None,
            "training_policies": training.names,
            "seed": self.seed,
            "return_mean": self.return_mean,
            "return_scale": self.return_scale,
            "feature_count": self.model.feature_count,
            "history": self.history,
        }
        save_tensors(path, tensors, "model", description)

    def _subsets(self, log: StoredStates | None, subsets: int | Subsets | None, seed: int) -> Drawing | Subsets:
        if isinstance(subsets, Subsets):
            if log is not None:
                raise ValueError("give states or clustered subsets, not both")
            self._check_dim(subsets.state_dim)
            self._check_clusters(subsets.offsets.shape[1] - 1)
            return subsets
        if log is None:
            if self.subsets is None:
                raise ValueError("no subsets are kept with this model: give states")
            return self.subsets if subsets is None else self.subsets.take(check_integer("subsets", subsets, 1))
        count = 5 if subsets is None else subsets
        self._check_dim(log.shape[1])
        remedy = ": the model was trained on subsets of that size and needs at least as many states"
        return Drawing.draw(log, count, size=self.config.subset_size, seed=seed, remedy=remedy)

    def _is_comparable(
        self,
        policies: list[Policy],
        log: StoredStates | None,
        subsets: int | Subsets | None,
        shrinkage: float,
    ) -> bool:
        """Whether arrays of actions, if there are any, are of the training's log, so that their distance is known."""
        arrays = [policy.name for policy in policies if isinstance(policy, ArrayPolicy)]
        if not arrays:
            return True
        if log is None:
            same = subsets is self.subsets or not isinstance(subsets, Subsets)
        else:
            training = self.training_policies
            same = log.has_rows(training.source.numpy(), training.states.numpy())
        if shrinkage and not same:
            raise ValueError(
                f"shrinkage needs the distance of {arrays[0]!r} to the training policies, which is unknown: "
                f"{_COMPARABLE}. Give the policy itself, or shrinkage=0"
            )
        return same

    def _check_features(self, features: Mapping[str, Any] | None, names: list[str]) -> Tensor | None:
        """(P, F), or None for a model without features."""
        count = self.model.feature_count
        if features is None or not count:
            if bool(count) != (features is not None):
                raise ValueError(
                    f"this model was trained with {count} features of each policy: give those of the candidates"
                    if count
                    else "this model was trained without features: give none"
                )
            return None
        found = read_features(features, names)
        if found.shape[1] != count:
            raise ValueError(f"policy {names[0]!r} has {found.shape[1]} features, the model was trained with {count}")
        return found

    def _check_critic(self, critic: Callable[[Tensor, Tensor], Any] | None) -> CriticColumns | None:
        check_critic(critic)
        columns = self.critic_columns
        if columns is None:
            if critic is not None:
                raise ValueError("this model was trained without a critic: give none")
            return None
        columns = columns if critic is None else replace(columns, critic=critic)
        if columns.critic is None:
            raise ValueError("this model was trained with a critic, which no file keeps: give critic=")
        return columns

    def _check_dim(self, dim: int) -> None:
        if dim != self.state_dim:
            raise ValueError(f"states have {dim} columns, the model was trained on {self.state_dim}")

    def _check_clusters(self, count: int) -> None:
        """Only a model that sorts the scores of the clusters is of their number."""
        if self.config.score == "sort" and count != self.config.clusters:
            raise ValueError(
                f"subsets have {count} clusters, but a model with score='sort' needs the {self.config.clusters} it was "
                "trained with"
            )


def _warn_of_foreign(ranking: Ranking) -> None:
    foreign = np.flatnonzero(ranking.distances > ranking.distance_limit)
    if len(foreign):
        listed = _listed([f"{ranking.names[i]!r} ({ranking.distances[i]:.3g})" for i in foreign])
        warn(
            f"unlike any training policy: {listed}; their mean squared action distance to the nearest one "
            f"exceeds {ranking.distance_limit:.3g}, twice the upper quartile of those among the "
            "training policies. Their scores are extrapolations",
            ForeignPolicyWarning,
        )


def _warn_of_training(ranking: Ranking) -> None:
    same = [repr(name) for name, known in zip(ranking.names, ranking.in_training or (), strict=True) if known]
    if same:
        warn(
            f"the model was trained on candidates, or on policies that act exactly like them: {_listed(same)}. Their "
            "scores are no test of the model",
            TrainingPolicyWarning,
        )


def _warn_of_unknown(ranking: Ranking) -> None:
    unknown = np.flatnonzero(np.isnan(ranking.distances))
    if len(unknown):
        warn(
            f"unknown distance to the training policies: {_listed([repr(ranking.names[i]) for i in unknown])}; "
            f"{_COMPARABLE}. Their scores may be extrapolations, and are not shrunk",
            ForeignPolicyWarning,
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def load(path: str | os.PathLike, *, device: torch.device | str = "cpu") -> Ranker:
    """Reads a model written by `Ranker.save` onto a device; nothing in the file is executed.

    Raises:
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a folder.
        ValueError: torch cannot use the device, or the file is truncated, damaged, of another kind or format.
    """
    device = check_device(device)
    tensors, description = load_tensors(path, "model")
    if description.get("format") != _FORMAT:
        raise ValueError(
            f"{path} has format {description.get('format')}, written by sopr_fast {description.get('sopr_fast')}; "
            f"this version ({__version__}) reads format {_FORMAT}"
        )
    try:
        ranker = _restored(tensors, description)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    ranker.model.to(device)
    if ranker.collapsed:
        warn_of_collapse()
    return ranker


def _restored(tensors: dict[str, Tensor], description: dict[str, Any]) -> Ranker:
    weights, training, subsets, critic = by_prefix(tensors, "model", "training_policies", "subsets", "critic")
    layout = Layout.from_dict(description["layout"])
    input_dim = description["state_dim"] + layout.width + len(critic.get("mean", ()))
    model = ScoringModel(input_dim, Config.from_dict(description["config"]), description["feature_count"])
    model.load_state_dict(weights)
    return Ranker(
        model,
        layout=layout,
        state_dim=description["state_dim"],
        training_policies=TrainingPolicies(description["training_policies"], **training),
        subsets=Subsets(**subsets, states_count=description["states_count"]) if subsets else None,
        history=description["history"],
        seed=description["seed"],
        return_mean=description["return_mean"],
        return_scale=description["return_scale"],
        critic_columns=CriticColumns(None, **critic) if critic else None,
    )


def rank(
    candidates: Any, states: Any = None, *, model: Ranker | str | os.PathLike | None = None, **options: Any
) -> Ranking:
    """Ranks candidates with a trained model: `Ranker.rank` in one call.

    Args:
        candidates, states, options: see `Ranker.rank`.
        model: a `Ranker` or the path of a saved one; None for the path in the environment variable SOPR_FAST_MODEL.

    Raises:
        ValueError: no model is given either way.
        OSError, ValueError: see `load`.
    """
    ranker = model if isinstance(model, Ranker) else load(model) if model else _load_default()
    return ranker.rank(candidates, states, **options)


def _load_default() -> Ranker:
    path = os.environ.get("SOPR_FAST_MODEL")
    if not path:
        raise ValueError("no model: pass model= (a Ranker or a path), or set SOPR_FAST_MODEL to a path")
    try:
        return load(path)
    except (OSError, ValueError) as error:
        raise type(error)(f"the environment variable SOPR_FAST_MODEL: {error}") from error
