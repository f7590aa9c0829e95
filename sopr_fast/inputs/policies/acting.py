"""Policies that act at once, each in states of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...runtime.checks import TOO_LARGE
from ...runtime.options import current
from .actor import Actor
from .policy import Policy

_ROWS = 4096  # of a pass, whose activations stay in cache


def together(policies: Sequence[Policy]) -> Callable[[Tensor], Tensor]:
    """Return a function from states (P, B, dim_s) float32 of P policies to their actions (P, B, dim_a).

    They are those of `Policy.act`. Deterministic perceptrons of one form act in one pass, other policies one by one.
    """
    groups: dict[Any, list[int]] = {}
    for p, policy in enumerate(policies):
        groups.setdefault(_form(policy) or p, []).append(p)
    order = torch.tensor([p for places in groups.values() for p in places], device="cpu").argsort()
    parts = [(places, _act([policies[p] for p in places])) for places in groups.values()]
    return lambda states: torch.cat([act(states[places]) for places, act in parts])[order]


def _act(policies: list[Policy]) -> Callable[[Tensor], Tensor]:
    """Return the function of `together` of one group."""

    def one_by_one(states: Tensor) -> Tensor:
        size = current().batch_size
        pairs = zip(policies, states, strict=True)
        return torch.stack([torch.cat([policy.act(batch) for batch in own.split(size)]) for policy, own in pairs])

    def at_once(states: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [whole._output(rows, None).mean for rows in states.split(max(1, _ROWS // len(policies)), 1)]
        actions = torch.cat(parts, 1)
        return actions if (actions.abs() < TOO_LARGE).all() else one_by_one(states)  # which names the policy

    if len(policies) == 1:
        return one_by_one
    whole = _stacked([policy for policy in policies if isinstance(policy, Actor)])
    return at_once


def _form(policy: Policy) -> tuple[Any, ...] | None:
    """Return what perceptrons that act in one pass have in common; None if a policy acts alone."""
    if not isinstance(policy, Actor) or policy._layers or policy.is_discrete:
        return None
    standardised = None if policy.standardisation is None else policy.standardisation.clip
    scaled, clipped = policy.scale is not None, policy.clip is not None
    return tuple(policy._sizes), policy.activation, policy.squash, standardised, scaled, clipped


def _stacked(actors: list[Actor]) -> Actor:
    """Return actors of one form as one that acts in states (P, B, dim_s): its tensors have a leading dimension."""
    whole = copy.copy(actors[0])
    whole._parameters = torch.cat([actor._parameters for actor in actors])
    for part in ("standardisation", "scale", "clip"):
        values = [getattr(actor, part) for actor in actors]
        if values[0] is not None:
            fields = zip(*values, strict=True)
            stacked = (torch.stack(each)[:, None] if isinstance(each[0], Tensor) else each[0] for each in fields)
            setattr(whole, part, type(values[0])(*stacked))
    return whole
