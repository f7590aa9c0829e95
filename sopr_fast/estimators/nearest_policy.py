"""The return of the nearest policy whose return is known."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..data import load
from ..metrics import policy_distances
from ..policies import as_policies, collect, probe
from ..returns import check_returns
from ..runtime.timing import Timings
from .estimates import Estimates
from .options import Options


@dataclass(frozen=True, eq=False)
class NearestPolicy(Options):
    """A candidate's value is the return of the nearest training policy by action distance (Eq. 3 of SOPR-T).

    Supervised as SOPR-T is, and so the bar for it. A candidate that is itself a training policy gets the return of the
    nearest other one, as a feature for training must: it is one where it has the name of one and is the same object or
    acts equally in all rows compared. A name alone does not make it one.

    Attributes:
        policies: training policies, see `sopr_fast.policies.as_policies`.
        returns: theirs, (M,) or a mapping from name.
        rows: logged states compared, evenly spaced.

    Diagnostics:
        nearest: (P,) names.
        distances: (P,).
    """

    policies: Any
    returns: Any
    rows: int = 4096

    def estimate(
        self,
        policies: Any,
        transitions: Any,
        *,
        discount: float | None = None,
        seed: int = 0,
        action_count: int | None = None,
        checkpoint: str | os.PathLike | None = None,
        device: torch.device | str = "cpu",
        progress: bool = True,
    ) -> Estimates:
        """See `Estimator.estimate`; discount, seed, checkpoint, device and progress do not matter.

        Raises:
            ValueError: also where the only training policy is asked for.
        """
        timings = Timings()
        with timings.stage("policies"):
            transitions = load(transitions)
            count = transitions.source_count
            known, asked = (
                as_policies(p, states_count=count, action_count=action_count) for p in (self.policies, policies)
            )
            names = [policy.name for policy in known]
            returns = check_returns(self.returns, names)
            last = len(transitions) - 1
            rows = torch.linspace(0, last, min(self.rows, last + 1), dtype=torch.float64, device="cpu").long()
            states, source = (torch.from_numpy(x)[rows] for x in (transitions.states, transitions.source))
            layout = probe([*known, *asked], states, source)
            columns = [collect(group, states, source, layout).numpy() for group in (asked, known)]
        with timings.stage("evaluation"):
            distances = policy_distances(*columns)
        for i, policy in enumerate(asked):
            for j, other in enumerate(known):
                if policy.name == other.name and (distances[i, j] == 0 or policy.is_same(other)):
                    distances[i, j] = np.inf
        if np.isinf(distances).all(1).any():
            raise ValueError(f"policy {names[0]!r} is the only training policy: there is no other to be nearest")
        nearest = distances.argmin(1)
        return Estimates(
            [policy.name for policy in asked],
            returns[nearest],
            method="NearestPolicy",
            diagnostics={
                "nearest": [names[i] for i in nearest],
                "distances": np.take_along_axis(distances, nearest[:, None], 1)[:, 0],
            },
            timings=dict(timings),
        )
