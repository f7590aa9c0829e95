"""The trained model: ranks candidates, is saved and loaded."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..argument_types import LogLike, PoliciesLike
from ..inputs.logs import load_states
from ..inputs.policies import ArrayPolicy, Layout, Policy, check_widths, collect, doubtful_answers, load_policies
from ..results.metrics import policy_distances
from ..results.ranking import Ranking
from ..results.warnings import warn_of_states
from ..runtime import distributed
from ..runtime.checks import integer
from ..runtime.options import current, current_device
from ..runtime.text import counted
from ..runtime.warn import DoubtfulPolicyWarning, warn
from .config import Config
from .model import ScoringModel
from .model_files import read_model, write_model
from .scoring import score_grid
from .subsets import Drawing
from .training import warn_of_collapse
from .training_policies import TrainingPolicies

_SUBSETS = 5  # by default


@dataclass(eq=False, repr=False, kw_only=True)
class Ranker:
    """Trained scoring model that ranks policies; returned by `sopr_fast.fit` and `sopr_fast.load`.

    Attributes:
        model: `ScoringModel` in eval mode.
        layout: What the model reads of a policy.
        training_policies: How training policies act on a sample of states, and their scores.
        subsets: Subsets kept with the model, or None.
        history: Loss and validation results of each step, and how training went.
        seed: Seed of the training.
        state_columns: Names of the columns of states, in order, if several were chosen by name.
    """

    model: ScoringModel
    layout: Layout
    training_policies: TrainingPolicies
    subsets: Drawing | None
    history: dict[str, Any]
    seed: int
    state_columns: str = ""

    def __post_init__(self) -> None:
        self.model.eval()

    def __repr__(self) -> str:
        subsets = "no subsets" if self.subsets is None else counted(len(self.subsets), "subset")
        return (
            f"Ranker(trained on {len(self.training_policies.names)} policies in {counted(self.config.steps, 'step')}, "
            f"states of width {self.state_dim}, {self.layout.kind} policies of action width {self.layout.action_dim}, "
            f"{subsets} kept{', collapsed' if self.collapsed else ''})"
        )

    @property
    def config(self) -> Config:
        """Options of model and training."""
        return self.model.config

    @property
    def collapsed(self) -> bool:
        """Whether training ended with nearly equal scores of all policies, so that a ranking means nothing."""
        return bool(self.history.get("collapsed"))

    @property
    def state_dim(self) -> int:
        """Width of a state."""
        return self.training_policies.states.shape[1]

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def rank(
        self,
        policies: PoliciesLike,
        states: LogLike | None = None,
        *,
        subsets: int | None = None,
        seed: int = 0,
    ) -> Ranking:
        """Rank candidates by their mean score over subsets of the states (paper section 3.2).

        If `torch.distributed` has been initialised, all processes call this method with the same arguments and share
        the work; the result is the same in all. A policy acts once: in each drawn state, and in the sample of training
        states kept with the model. It is asked twice more for a few states, to see whether its answers repeat.

        Args:
            policies: Candidates to rank, see `sopr_fast.load_policies`. Arrays of actions are indexed like
                `states`; their distance to the training policies is known only on the training log, passed again or as
                the subsets kept with the model.
            states: (rows, dim_s) logged states or the path of a file; None for the subsets kept with the model.
            subsets: Number of subsets, by default 5.
            seed: Seed of drawing subsets from logged states.

        Raises:
            ImportError, MemoryError, OSError, RuntimeError, TypeError: See `load_policies`, `load_log`.
            ValueError: An argument has a wrong value; the message names the policy, row, option or file.

        Warns:
            UserWarning: States are unlike those of training, in the named columns.
            CollapsedTrainingWarning: Training of the model collapsed.
            DoubtfulPolicyWarning: Actions of a candidate may be unintended.
            ForeignPolicyWarning: A candidate is foreign: its action distance to the nearest training policy (Eq. 3)
                exceeds twice the upper quartile of such distances among the training policies. Or the distance is
                unknown.
        """
        seed = integer(0)("seed", seed)
        group, training = distributed.current(), self.training_policies
        loaded = load_policies(policies)
        is_array = np.array([isinstance(policy, ArrayPolicy) for policy in loaded.values()], bool)
        drawn, on_training_log = self._draw(states, subsets, seed)
        acting = loaded.for_log(drawn.states_count)
        for policy in acting:  # copies of the user's
            policy.action_count = policy.action_count or self.layout.action_count
        names = list(loaded)
        group.check_same(
            options=[seed, current().batch_size],
            names_of_policies=names,
            states=drawn.states,
            subsets=drawn.rows,
            **self.model.state_dict(),
        )
        check_widths(acting, self.state_dim, "the model", "take a model of their environment, or leave them out")
        has_distance = ~is_array | on_training_log
        columns, sampled = self._act(acting[group.part(len(acting))], drawn, log_is_known=bool(has_distance.all()))
        own = policy_distances(sampled, training.columns) if len(sampled) else np.empty((0, len(training.names)))
        distances = np.where(has_distance[:, None], group.gather(torch.from_numpy(own)).numpy(), np.nan)
        scores = self._score(columns, drawn)
        ranking = Ranking.from_subsets(
            names,
            scores,
            distances=distances.min(1),
            distance_limit=training.distance_limit,
            history=self.history,
            settings={"subsets": scores.shape[1], "seed": seed, "training policies": len(training.names)}
            | {f"training {name}": value for name, value in {"seed": self.seed, **self.config.to_dict()}.items()},
        )
        if self.collapsed:
            warn_of_collapse()
        if states is not None:
            warn_of_states(drawn.states, training.states)
        for doubt, category in ranking.doubts:
            warn(doubt, category)
        return ranking

    def _draw(self, states: Any, subsets: int | None, seed: int) -> tuple[Drawing, bool]:
        """Return subsets to score on, on the CPU, and whether their states are known to be those of training."""
        if subsets is not None:
            subsets = integer(1)("subsets", subsets)
        if states is None:
            if self.subsets is None:
                raise ValueError("no subsets are kept with this model: pass the log as states=…")
            return self.subsets if subsets is None else self.subsets.take(subsets), True
        log, training = load_states(states), self.training_policies
        if log.shape[1] != self.state_dim:
            width = counted(log.shape[1], "column")
            raise ValueError(f"states have {width}, the model was trained on {self.state_dim}: choose these")
        if log.columns != self.state_columns and log.columns and self.state_columns:
            named = f"states have the columns {log.columns}, those of training were {self.state_columns}"
            raise ValueError(f"{named}: choose them in that order by columns={{'states': […]}}")
        drawn = Drawing.draw(log, subsets or _SUBSETS, size=self.config.subset_size, seed=seed)
        return drawn, log.has_rows(training.source.numpy(), training.states.numpy())

    def _act(self, policies: list[Policy], drawn: Drawing, *, log_is_known: bool) -> tuple[Tensor, Tensor]:
        """Return the columns of policies in the U drawn states and in the R sampled ones of training.

        Arrays of actions answer any row for the sampled states, unless these are known to be rows of the log.
        """
        training, count = self.training_policies, len(drawn.states)
        sampled = training.source if log_is_known else drawn.source[:1].expand(len(training.source))
        states, source = torch.cat([drawn.states, training.states]), torch.cat([drawn.source, sampled])
        columns = collect(policies, states, source, self.layout, show=True)
        for note in doubtful_answers(policies, columns, states, source, self.layout):
            warn(note, DoubtfulPolicyWarning)
        return columns[:, :count], columns[:, count:]

    def _score(self, columns: Tensor, drawn: Drawing) -> np.ndarray:
        """Return scores of all processes' candidates, (P, S) float64, from the columns of this process's, (p, U, C)."""
        device = current().device or self.device
        model = self.model if device == self.device else copy.deepcopy(self.model).to(device)
        own = score_grid(model, drawn.clustered(self.config.clusters, device), columns, show=True).cpu()
        scores = distributed.current().gather(own).double().numpy()
        if not np.isfinite(scores).all():
            raise ValueError("the model gives scores that are not finite: train again, with a lower learning_rate")
        return scores

    def save(self, path: str | os.PathLike) -> None:
        """Write the model to one safetensors file, whole or not at all; of several processes, only process 0 writes.

        Raises:
            OSError: The file cannot be written.
        """
        if distributed.current().rank == 0:
            write_model(path, **vars(self))


def load(path: str | os.PathLike | None = None) -> Ranker:
    """Load a model that `Ranker.save` wrote onto the device of `sopr_fast.options`; nothing in the file is executed.

    Args:
        path: File to read; None for the path in the environment variable SOPR_FAST_MODEL.

    Raises:
        OSError, TypeError, ValueError: No file is named, or it cannot be read, or is damaged or of another kind or
            format.
    """
    named = os.environ.get("SOPR_FAST_MODEL") if path is None else path
    if not named:
        raise ValueError("no model: pass model=…, or set SOPR_FAST_MODEL to the path of one")
    if not isinstance(named, str | os.PathLike):
        raise TypeError(f"model must be a Ranker or the path of a saved one, got {type(named).__name__}")
    try:
        ranker = Ranker(**read_model(named))
    except (OSError, ValueError) as error:
        if path is not None:
            raise
        raise type(error)(f"the environment variable SOPR_FAST_MODEL: {error}") from error
    ranker.model.to(current_device())
    return ranker


def rank(
    policies: PoliciesLike,
    states: LogLike | None = None,
    *,
    model: Ranker | str | os.PathLike | None = None,
    subsets: int | None = None,
    seed: int = 0,
) -> Ranking:
    """Rank candidates with a trained model: `Ranker.rank` in one call.

    Args:
        policies: See `Ranker.rank`, as `states`, `subsets` and `seed`.
        model: A `Ranker`, or what `load` reads.
    """
    if isinstance(states, Ranker):
        raise TypeError("a model stands where states belong: call ranker.rank(candidates), or pass model=ranker")
    ranker = model if isinstance(model, Ranker) else load(model)
    return ranker.rank(policies, states, subsets=subsets, seed=seed)
