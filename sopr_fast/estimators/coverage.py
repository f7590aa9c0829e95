"""How much of what policies do resembles the log."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..inputs.accepted import LogLike, PoliciesLike
from ..ranking.estimates import warn_about
from ..runtime.distributed import share_policies
from ..runtime.progress import progress_bar
from .log import Log, read
from .policy_actions import PolicyActions

_STATES = 1024
_NEIGHBOURS = 32
_CHUNK = 1 << 24  # pairs of states compared at once
_NEGLIGIBLE = 0.1  # distance, in standard deviations of the logged actions
_MOST_UNCOVERED = 0.9


def covered_shares(policies: PoliciesLike, log: LogLike) -> dict[str, float]:
    """Return the share of logged states in which each policy acts as the log does nearby, by name.

    Estimates from the log, and rankings by its states, extrapolate in the others. See `uncovered` for the definition.
    Processes of `torch.distributed` share the policies, so all of them must call this alike.

    Args:
        policies: P policies, see `Estimator.estimate`.
        log: Logged transitions, see `sopr_fast.load_log`.

    Raises:
        OSError, TypeError, ValueError: See `Estimator.estimate`.

    Warns:
        UncertainEstimateWarning: Outliers dwarf all other logged actions.
    """
    adapted, layout, prepared = read(policies, log)
    shares = 1 - _shares(PolicyActions(adapted, layout, prepared, memory=0))
    return dict(zip([policy.name for policy in adapted], shares.tolist(), strict=True))


def uncovered(actions: PolicyActions) -> np.ndarray:
    """Return the share of states in which each policy acts unlike the log.

    A policy acts unlike the log in a state if its action is farther from the actions logged in similar states than 99 %
    of logged actions are. Similar states are the 32 nearest other logged states, among at most 65,536. The distance is
    the Euclidean one to the nearest of their actions, in standard deviations of each action column. A policy that acts
    as the log does has a share of 1 %. For discrete actions the share is the mean probability of actions that were not
    logged in similar states. At most 1,024 states are used, evenly spaced.

    Args:
        actions: What P policies do in the states of the log.

    Returns:
        (P,) float64 shares.

    Warns:
        UncertainEstimateWarning: The share of a policy exceeds 0.9.
    """
    shares = _shares(actions)
    warn_about(
        {actions.policies[i].name: f"{shares[i]:.0%}" for i in np.flatnonzero(shares > _MOST_UNCOVERED)},
        "the log hardly covers {}: in this share of its states they act unlike any action logged nearby, so the "
        "critic extrapolates; log more of these policies, or rely on their measured returns",
    )
    return shares


@torch.no_grad()
def _shares(actions: PolicyActions) -> np.ndarray:
    log = actions.log
    rows, candidates = log.evaluated_rows(_STATES), log.evaluated_rows()
    neighbours = _nearest(log, rows, candidates)  # (B, k)
    policies = len(actions.policies)
    if log.discrete:
        never_logged = log.actions[neighbours].sum(1) == 0

        def probability(part: slice) -> Tensor:  # (p,)
            return (actions.of(part)(rows) * never_logged).sum(2).mean(1).double().cpu()

        return share_policies(policies, probability, singly=True).numpy()
    scale = log.actions[candidates].std(0, correction=0).clamp(min=1e-3)
    logged = log.actions[neighbours] / scale  # (B, k, dim_a)

    def distance(taken: Tensor) -> Tensor:  # (B, dim_a) -> (B,)
        return (taken[:, None] / scale - logged).norm(dim=2).amin(1)

    limit = distance(log.actions[rows]).quantile(0.99).clamp(min=_NEGLIGIBLE)

    def share(part: slice) -> Tensor:  # (p,)
        return torch.stack([(distance(own) > limit).double().mean().cpu() for own in actions.of(part)(rows)])

    return share_policies(policies, share, singly=True).numpy()


def _nearest(log: Log, rows: Tensor, candidates: Tensor) -> Tensor:
    """Return the rows (B, k) among the candidates whose states are nearest to those of `rows` (B,), without itself."""
    states, count = log.states(candidates), min(_NEIGHBOURS, max(1, len(candidates) - 1))
    neighbours = []
    with progress_bar(len(rows), "coverage", "state") as bar:
        for chunk in rows.split(max(1, _CHUNK // len(candidates))):
            distances = torch.cdist(log.states(chunk), states)
            distances[chunk[:, None] == candidates] = torch.inf
            neighbours.append(candidates[distances.topk(count, largest=False).indices])
            bar.update(len(chunk))
    return torch.cat(neighbours)
