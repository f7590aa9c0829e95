"""Perceptrons that act at once, each in states of its own."""

import itertools

import torch

from sopr_fast.inputs.policies.actor import Actor, Standardisation, stacks
from sopr_fast.inputs.policies.output import Bounds


def layers(random, *widths):
    return [
        (torch.randn(after, before, generator=random), torch.randn(after, generator=random))
        for before, after in itertools.pairwise(widths)
    ]


def test_perceptrons_of_one_form_act_as_each_of_them_alone():
    random = torch.Generator().manual_seed(0)
    forms = {"plain": [], "scaled": [], "clipped": [], "wide": [], "discrete": []}
    for _ in range(3):
        limit = torch.rand(2, generator=random)
        moments = Standardisation(*torch.rand(2, 3, generator=random).double() + 0.1, clip=2.0)
        scaled = {"scale": Bounds(-limit, limit), "standardisation": moments}
        forms["plain"].append(Actor("", layers(random, 3, 16, 2)))
        forms["scaled"].append(Actor("", layers(random, 3, 16, 2), **scaled))
        forms["clipped"].append(Actor("", layers(random, 3, 16, 2), squash=False, clip=Bounds(-limit, limit)))
        forms["wide"].append(Actor("", layers(random, 3, 40, 8, 2), activation="tanh"))
        forms["discrete"].append(Actor("", layers(random, 3, 16, 4), is_discrete=True))
    states = 2 * torch.randn(3, 70, 3, generator=random)
    for actors in forms.values():
        alone = torch.stack([actor.act(own) for actor, own in zip(actors, states, strict=True)])
        ((places, stack),) = stacks(actors)
        assert places == [0, 1, 2] and torch.equal(stack._output(states, None).mean, alone)
    mixed = [actor for actors in zip(*forms.values(), strict=True) for actor in actors]
    assert [places for places, _ in stacks(mixed)] == [[form, form + 5, form + 10] for form in range(5)]
    ((_, stack),) = stacks([Actor("", layers(random, 3, 16, 2), activation="gelu")])
    assert stack is None
