import pytest
import torch

from sopr_fast.runtime.adam import Adam


def problem(seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random).requires_grad_() for shape in ((3, 5), (7,), ())]


def descend(optimizer, parameters, steps):
    for step in range(steps):
        optimizer.zero_grad()
        sum(((step + 1) * parameter - 1).square().sum() for parameter in parameters).backward()
        optimizer.step()


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(("betas", "decay"), [((0.9, 0.999), 0.0), ((0.0, 0.99), 0.0), ((0.9, 0.999), 0.01)])
def test_steps_are_those_of_torch(betas, decay, maximize):
    mine, theirs = problem(), [parameter.detach().double().requires_grad_() for parameter in problem()]
    descend(Adam(mine, 0.1, betas=betas, decay=decay, maximize=maximize), mine, 5)
    descend(torch.optim.AdamW(theirs, lr=0.1, betas=betas, weight_decay=decay, maximize=maximize), theirs, 5)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
