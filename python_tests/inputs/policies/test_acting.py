"""Policies that act at once, each in states of its own."""

import itertools

import numpy as np
import pytest
import torch

from sopr_fast.inputs.policies import load_policies, together
from sopr_fast.inputs.policies.actor import Actor, Standardisation
from sopr_fast.inputs.policies.output import Bounds


def layers(random, widths, scale=1.0):
    return [
        (scale * torch.randn(after, before, generator=random), torch.randn(after, generator=random))
        for before, after in itertools.pairwise(widths)
    ]


def test_policies_of_several_forms_act_as_each_of_them_alone():
    random = torch.Generator().manual_seed(0)
    policies = {"callable": lambda states: np.sin(states[:, :2])}
    for i in range(3):
        limit = torch.rand(2, generator=random)
        moments = Standardisation(*torch.rand(2, 3, generator=random).double() + 0.1, clip=2.0)
        options = {"scale": Bounds(-limit, limit), "standardisation": moments}
        policies |= {
            f"plain-{i}": Actor("", layers(random, [3, 16, 2])),
            f"scaled-{i}": Actor("", layers(random, [3, 16, 2]), **options),
            f"clipped-{i}": Actor("", layers(random, [3, 16, 2]), squash=False, clip=Bounds(-limit, limit)),
            f"wide-{i}": Actor("", layers(random, [3, 40, 8, 2]), activation="tanh"),
            f"smooth-{i}": Actor("", layers(random, [3, 16, 2]), activation="gelu"),
        }
    loaded = list(load_policies(policies).values())
    states = 2 * torch.randn(len(loaded), 70, 3, generator=random)
    alone = torch.stack([policy.act(own) for policy, own in zip(loaded, states, strict=True)])
    assert torch.equal(together(loaded)(states), alone)


def test_a_policy_that_is_not_finite_is_named():
    random = torch.Generator().manual_seed(0)
    scales = {"good": 1.0, "broken": torch.inf}
    loaded = [Actor(name, layers(random, [3, 4, 2], scale), squash=False) for name, scale in scales.items()]
    with pytest.raises(ValueError, match="policy 'broken' returned"):
        together(loaded)(torch.ones(2, 5, 3))
