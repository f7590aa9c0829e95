"""Methods that `sopr_fast.evaluate` judges in quality.py and compare_estimators.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sopr_fast
from sopr_fast.estimators import Estimates
from sopr_fast.inputs.policies import as_policies
from sopr_fast.inputs.returns import check_returns
from sopr_fast.runtime.checkpoints import fingerprint
from sopr_fast.sopr.config import Config
from sopr_fast.sopr.ranker import Ranker


@dataclass(frozen=True, repr=False)
class Fitted:
    """Scores by `sopr_fast.fit` and `Ranker.rank`, with options that `sopr_fast.estimators.SOPR` does not have.

    Attributes:
        config: Options of the model.
        validation: Policies that choose the weights, and their returns; or None.
        subsets: Number of newly drawn subsets on which policies are scored.
        rankers: Trained models by seed and training policies.
    """

    config: Config
    validation: tuple[Any, Any] | None = None
    subsets: int = 5
    rankers: dict[Any, Ranker] = field(default_factory=dict)

    name = "SOPR"
    supervised, needs_rewards = True, False

    def __repr__(self) -> str:
        """Return all that determines the scores, by which `evaluate` knows the columns that it may resume."""
        held_out = None
        if self.validation is not None:
            policies, returns = self.validation
            names = [policy.name for policy in as_policies(policies)]
            held_out = fingerprint(names, check_returns(returns, names))
        options = {name: getattr(self, name) for name in ("config", "subsets")}
        return f"Fitted(validation={held_out}, {options})"

    def prepare(self, policies: Any, log: Any, **_: Any) -> tuple[Any, Any]:
        """Return policies and log as they are: every model draws its own subsets."""
        return policies, log

    def estimate(self, policies: Any, log: Any, *, known: Any, returns: Any, seed: int, **options: Any) -> Estimates:
        """Return the scores of policies by a model of the known ones."""
        key = seed, *(policy.name for policy in known)
        if key not in self.rankers:
            options = {"validation": self.validation, "config": self.config, "seed": seed}
            self.rankers[key] = sopr_fast.fit(known, returns, log, **options)
        ranker = self.rankers[key]
        ranking = ranker.rank(policies, log, subsets=self.subsets, seed=seed + 1000)
        return Estimates(
            ranking.names,
            ranking.scores,
            ranking.standard_errors,
            method=self.name,
            diagnostics={"distances": ranking.distances, "distance_limit": ranking.distance_limit},
            timings={**ranker.timings, **ranking.timings},
        )


@dataclass
class Recorded:
    """A method that keeps its last estimates, whose diagnostics an evaluation does not hold.

    Attributes:
        method: The method.
        last: Its last estimates, or None.
    """

    method: Any
    last: Estimates | None = field(default=None, repr=False)

    trains_each_policy = False  # all policies in one call

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def estimate(self, *arguments: Any, **options: Any) -> Estimates:
        """Return what the method says."""
        self.last = self.method.estimate(*arguments, **options)
        return self.last
