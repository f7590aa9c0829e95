"""How much of what policies do differs from the log."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..ranking.estimates import warn_about
from .log import Log
from .policy_actions import PolicyActions

_STATES = 1024
_NEIGHBOURS = 32
_CHUNK = 1 << 24  # pairs of states compared at once
_NEGLIGIBLE = 0.1  # distance, in standard deviations of the logged actions
_MOST_UNCOVERED = 0.9


@torch.no_grad()
def uncovered(actions: PolicyActions) -> np.ndarray:
    """Return the share (P,) float64 of states in which each policy acts unlike the log, and warn of large ones.

    A policy acts unlike the log in a state if its action is farther from the actions logged in similar states than 99 %
    of logged actions are. Similar states are the 32 nearest other logged states, among at most 65,536. The distance is
    the Euclidean one to the nearest of their actions, in standard deviations of each action column. A policy that acts
    as the log does has a share of 1 %. For discrete actions the share is the mean probability of actions that were not
    logged in similar states. At most 1,024 states are used, evenly spaced.
    """
    log = actions.log
    rows, candidates = log.evaluated_rows(_STATES), log.evaluated_rows()
    nearest = _nearest(log, rows, candidates)  # (B, k)
    taken = actions(rows)  # (P, B, dim_a)
    if log.discrete:
        never_logged = log.actions[nearest].sum(1) == 0
        shares = (taken * never_logged).sum(2).double().mean(1).cpu().numpy()
    else:
        scale = log.actions[candidates].std(0, correction=0).clamp(min=1e-3)
        logged = log.actions[nearest] / scale  # (B, k, dim_a)

        def distance(own: Tensor) -> Tensor:  # (B, dim_a) -> (B,)
            return (own[:, None] / scale - logged).norm(dim=2).amin(1)

        limit = distance(log.actions[rows]).quantile(0.99).clamp(min=_NEGLIGIBLE)
        shares = np.array([float((distance(own) > limit).double().mean()) for own in taken])
    warn_about(
        {actions.policies[i].name: f"{shares[i]:.0%}" for i in np.flatnonzero(shares > _MOST_UNCOVERED)},
        "the log hardly covers {}: in this share of its states they act unlike any action logged nearby, so the "
        "critic extrapolates; log more of these policies, or rely on their measured returns",
    )
    return shares


def _nearest(log: Log, rows: Tensor, candidates: Tensor) -> Tensor:
    """Return the rows (B, k) among the candidates whose states are nearest to those of `rows` (B,), without itself."""
    states, count = log.states(candidates), min(_NEIGHBOURS, max(1, len(candidates) - 1))
    nearest = []
    for chunk in rows.split(max(1, _CHUNK // len(candidates))):
        distances = torch.cdist(log.states(chunk), states)
        distances[chunk[:, None] == candidates] = torch.inf
        nearest.append(candidates[distances.topk(count, largest=False).indices])
    return torch.cat(nearest)
