"""How much of what policies do the log holds anything like."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..runtime.progress import progress_bar
from .estimates import warn_of
from .log import Log, PolicyActions

_ASKED = 1024
_NEIGHBOURS = 32
_CHUNK = 1 << 24  # pairs of states compared at a time
_NEGLIGIBLE = 0.1  # of the spread of logged actions
_MOST_UNCOVERED = 0.9


def uncovered(actions: PolicyActions, log: Log, *, progress: bool) -> np.ndarray:
    """(P,) share of states in which a policy's action is farther from those logged in similar states than 99 % of the
    logged actions are.

    Similar states are the 32 nearest other logged ones; the distance is to the nearest of their actions, each column
    in units of its spread. A policy that acts as the log does so gets 1 %. Of discrete actions it is the probability of
    those that no similar state's row holds. Up to 1,024 states are asked, evenly spaced, and 65,536 compared with.

    Warns:
        UncertainEstimateWarning: of policies with a share over 0.9.
    """
    shares = _shares(actions, log, progress)
    warn_of(
        {actions.policies[i].name: f"{shares[i]:.0%}" for i in np.flatnonzero(shares > _MOST_UNCOVERED)},
        "the log hardly covers {}: in that share of its states they act unlike anything logged nearby, so a critic's "
        "values of them are extrapolated",
    )
    return shares


@torch.no_grad()
def _shares(actions: PolicyActions, log: Log, progress: bool) -> np.ndarray:
    asked, known = log.evaluated_rows(_ASKED), log.evaluated_rows()
    near = _nearest(log, asked, known, progress)  # (B, k)
    acted = actions(asked)  # (P, B, dim_a)
    if log.discrete:
        return (acted * (log.actions[near].sum(1) == 0)).sum(2).mean(1).double().cpu().numpy()
    spread = log.actions[known].std(0, correction=0).clamp(min=1e-3)
    logged = log.actions[near] / spread  # (B, k, dim_a)

    def distance(asked: Tensor) -> Tensor:  # (B, dim_a) → (B,)
        return (asked[:, None] / spread - logged).norm(dim=2).amin(1)

    limit = distance(log.actions[asked]).quantile(0.99).clamp(min=_NEGLIGIBLE)
    return np.array([float((distance(one) > limit).double().mean()) for one in acted])


def _nearest(log: Log, asked: Tensor, known: Tensor, progress: bool) -> Tensor:
    states, count = log.states(known), min(_NEIGHBOURS, max(1, len(known) - 1))
    found = []
    with progress_bar(len(asked), "coverage", "state", show=progress) as bar:
        for rows in asked.split(max(1, _CHUNK // len(known))):
            distances = torch.cdist(log.states(rows), states)
            distances[rows[:, None] == known] = torch.inf
            found.append(known[distances.topk(count, largest=False).indices])
            bar.update(len(rows))
    return torch.cat(found)
