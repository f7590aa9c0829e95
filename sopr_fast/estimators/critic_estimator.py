"""What estimators that train critics share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ..runtime.fields import integer, number, option, optional, widths
from .coverage import uncovered
from .critics import Critic, CriticLearner, decay, lag, target_rate
from .learning import Batches, learn
from .policy_actions import PolicyActions
from .reward_estimator import Problem, RewardEstimator


@dataclass(frozen=True)
class CriticEstimator(RewardEstimator):
    """Base of estimators that train critics by temporal differences; see `FQE` for the options and diagnostics."""

    updates: int = option(20000, integer(1))
    batch_size: int = option(256, integer(1))
    hidden: tuple[int, ...] = option((256, 256), widths)
    learning_rate: float = option(3e-4, number(above=0))
    target_rate: float | None = option(None, optional(number(above=0, most=1)))
    ensemble: int = option(1, integer(1))
    draws: int = option(4, integer(1))

    def _train(
        self,
        problem: Problem,
        actions: PolicyActions,
        usable: np.ndarray,
        next_actions: Callable[[Tensor, int], Tensor],
        *,
        description: str,
        watch: Callable[[Critic], np.ndarray],
        identity: Callable[[], Iterable[Any]],
        **options: Any,
    ) -> tuple[Critic, dict[str, Any]]:
        """Return trained critics, and the diagnostics "uncovered", "lag", "curve" and "critic".

        Args:
            problem: Policies and log.
            actions: What the policies do in the states of the log.
            usable: (N,) bool, whether critics may learn from a row.
            next_actions: See `CriticLearner`.
            description: See `learn`.
            watch: Function of the critics that returns values (P, M), whose means the curve records.
            identity: See `learn`.
            options: Other options of `CriticLearner`.
        """
        log, request = problem.log, problem.request
        rate = target_rate(self.target_rate, self.updates, decay(log.transitions, self.discount))
        remaining = lag(log.transitions, self.updates, rate, self.discount)
        with request.timings.stage("coverage"):
            shares = uncovered(actions)
        with request.timings.stage("training"):
            pools = log.pools(usable, self.ensemble, request.seed)
            learner = CriticLearner(
                log,
                Batches(pools, self.batch_size, request.seed, log.device),
                next_actions,
                discount=self.discount,
                hidden=self.hidden,
                learning_rate=self.learning_rate,
                target_rate=rate,
                seed=request.seed,
                **options,
            )
            critic = Critic(learner.target, learner.scale, log.units)
            curve = learn(
                learner,
                self.updates,
                description=description,
                watch=lambda: watch(critic).mean(1).tolist(),
                checkpoint=request.checkpoint,
                identity=identity,
            )
        return critic, {"uncovered": shares, "lag": remaining, "curve": curve, "critic": critic}
