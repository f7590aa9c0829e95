"""Methods that `sopr_fast.evaluate` judges in quality.py and compare_estimators.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sopr_fast
from sopr_fast.estimators import Estimates
from sopr_fast.policies import as_policies
from sopr_fast.sopr.config import Config
from sopr_fast.sopr.ranker import Ranker


@dataclass(frozen=True)
class Fitted:
    """Scores by `sopr_fast.fit` and `Ranker.rank`, with options that `sopr_fast.estimators.SOPR` does not have.

    Attributes:
        config: Options of the model.
        validation: Policies that choose the weights, and their returns; or None.
        shrinkage: See `Ranker.rank`.
        subsets: Number of newly drawn subsets on which policies are scored.
        inputs: Function of all policies, the log and the other arguments of `estimate` that returns further inputs of
            the model: `critic` or `features` of `sopr_fast.fit`. None for none.
        rankers: Trained models by seed and training policies, which copies with other shrinkage share.
    """

    config: Config
    validation: tuple[Any, Any] | None = field(default=None, repr=False)
    shrinkage: float = 0.0
    subsets: int = 5
    inputs: Callable[..., dict[str, Any]] | None = field(default=None, repr=False)
    rankers: dict[Any, tuple[Ranker, dict[str, Any]]] = field(default_factory=dict, repr=False)

    name = "SOPR"
    supervised, needs_rewards = True, False

    def prepare(self, policies: Any, log: Any, **_: Any) -> tuple[Any, Any]:
        """Return policies and log as they are: every model draws its own subsets."""
        return policies, log

    def estimate(
        self, policies: Any, log: Any, *, known: Any, returns: Any, seed: int, progress: bool, **options: Any
    ) -> Estimates:
        """Return the scores of policies by a model of the known ones."""
        key = seed, *(policy.name for policy in known)
        if key not in self.rankers:
            inputs = {}
            if self.inputs is not None:
                others = [] if self.validation is None else as_policies(self.validation[0])
                options |= {"known": known, "returns": returns, "seed": seed, "progress": progress}
                inputs = self.inputs([*known, *others, *policies], log, **options)
            options = {"validation": self.validation, "config": self.config, "seed": seed, "progress": progress}
            self.rankers[key] = sopr_fast.fit(known, returns, log, **options, **inputs), inputs
        ranker, inputs = self.rankers[key]
        ranking = ranker.rank(
            policies,
            log,
            subsets=self.subsets,
            shrinkage=self.shrinkage,
            seed=seed + 1000,
            features=inputs.get("features"),
            progress=progress,
        )
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
