"""What tells without any known return how far values can be trusted: the log's support, and agreement of members."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..runtime.text import list_names, percent
from .log import Log
from .policy_actions import PolicyActions

_AGREE, _AGREE_IN_PART = 0.8, 0.65  # mean rank correlation of the orders by two members
STOCHASTIC = 0.25  # share of the change of state that models miss, from which the environment counts as stochastic
MOST_UNSUPPORTED = 0.4  # share of decisions, from which the log does not show what a policy does
_STATES, _CANDIDATES = 2048, 65536
_NEIGHBOURS = 20
_USUAL = 0.95  # share of the logged decisions that count as supported
_NEGLIGIBLE = 0.1  # distance, in standard deviations of the logged actions
_CHUNK = 1 << 24  # pairs of states compared at once


@torch.no_grad()
def unsupported(actions: PolicyActions) -> np.ndarray:
    """Return the share (P,) float64 of each policy's decisions that the log does not support; warn of over 40 %.

    A decision is not supported if its action is farther from the actions logged in similar states than 95 % of logged
    actions are. Similar states are the 20 nearest other logged states, among at most 65,536. The distance is the
    Euclidean one to the nearest of their actions, in standard deviations of each action column. Of discrete actions,
    those are not supported that no similar state shows; probabilities of actions count. So a policy that acts as the
    log does has a share of at most 5 %. At most 2,048 states are used, evenly spaced.
    """
    log = actions.log
    rows, candidates = log.evaluated_rows(_STATES), log.evaluated_rows(_CANDIDATES)
    similar = _similar(log, rows, candidates)  # (B, k)
    taken = actions(rows)  # (P, B, dim_a)
    if log.discrete:
        never_logged = log.actions[similar].sum(1) == 0
        shares = (taken * never_logged).sum(2).double().mean(1).numpy()
    else:
        scale = log.actions[candidates].std(0, correction=0).clamp(min=1e-3)
        logged = log.actions[similar] / scale  # (B, k, dim_a)

        def distance(own: Tensor) -> Tensor:  # (B, dim_a) -> (B,)
            return (own[:, None] / scale - logged).norm(dim=2).amin(1)

        limit = distance(log.actions[rows]).quantile(_USUAL).clamp(min=_NEGLIGIBLE)
        shares = np.array([float((distance(own) > limit).double().mean()) for own in taken])
    for note in unsupported_in_words([policy.name for policy in actions.policies], shares):
        log.doubt(note)
    return shares


def agreement_in_words(agreement: float) -> list[str]:
    """Return whether the members of a simulator order the policies alike; nothing if that is unknown."""
    if np.isnan(agreement):
        return []
    if agreement >= _AGREE:
        return [f"The simulators agree on the order: {agreement:.2f}"]
    if agreement >= _AGREE_IN_PART:
        return [f"The simulators agree on the order in part: {agreement:.2f}"]
    return [f"The simulators do not agree on the order: {agreement:.2f}; this log does not tell, measured returns do"]


def missed_in_words(state_error: float) -> list[str]:
    """Return a note if the simulator misses much of the change of state on held-out rows; none if it does not."""
    if state_error <= STOCHASTIC:
        return []
    missed = f"On held-out rows the simulator misses {percent(state_error)} of the change of state"
    return [f"{missed}: are rows and their order right? If they are, the environment is noisy"]


def is_unsupported(shares: np.ndarray | None, known: np.ndarray) -> np.ndarray:
    """Return whether the log does not show what each candidate (P,) does."""
    return np.zeros(len(known), bool) if shares is None else ~known & (shares > MOST_UNSUPPORTED)


def unsupported_in_words(names: list[str], shares: np.ndarray | None, known: np.ndarray | None = None) -> list[str]:
    """Return a note on the candidates (all but the known ones) that the log does not support; none without such."""
    known = np.zeros(len(names), bool) if known is None else known
    places = np.flatnonzero(is_unsupported(shares, known))
    if shares is None or not len(places):
        return []
    least, most = map(percent, (shares[places].min(), shares[places].max()))
    share = most if least == most else f"{least} to {most}"
    listed = list_names([names[i] for i in places], 5)
    unlike = f"The log does not show what these do: {share} of their decisions are unlike logged ones"
    return [f"{unlike}; measure them, or log more like them: {listed}"]


def _similar(log: Log, rows: Tensor, candidates: Tensor) -> Tensor:
    """Return the rows (B, k) among the candidates whose states are nearest to those of `rows` (B,), without itself."""
    states, count = log.states(candidates), min(_NEIGHBOURS, max(1, len(candidates) - 1))
    similar = []
    for chunk in rows.split(max(1, _CHUNK // len(candidates))):
        distances = torch.cdist(log.states(chunk), states)
        distances[chunk[:, None] == candidates] = torch.inf
        similar.append(candidates[distances.topk(count, largest=False).indices])
    return torch.cat(similar)
