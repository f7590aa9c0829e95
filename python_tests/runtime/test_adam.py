import math

import pytest
import torch

from sopr_fast.runtime.adam import Adam


def problem(seed=0):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=random).requires_grad_() for shape in ((3, 5), (7,), ())]


@pytest.mark.parametrize(("maximize", "most"), [(False, 0.0), (True, 0.0), (False, 3.0)])
@pytest.mark.parametrize(("betas", "decay"), [((0.9, 0.999), 0.0), ((0.0, 0.99), 0.0), ((0.9, 0.999), 0.01)])
def test_steps_are_those_of_torch(betas, decay, maximize, most):
    mine, theirs = problem(), [parameter.detach().double().requires_grad_() for parameter in problem()]
    adam = Adam(mine, 0.1, betas=betas, decay=decay, maximize=maximize)
    peer = torch.optim.AdamW(theirs, lr=0.1, betas=betas, weight_decay=decay, maximize=maximize)
    for step in range(5):
        mine_loss, loss = (
            sum(((step + 1) * parameter - 1).square().sum() for parameter in parameters)
            for parameters in (mine, theirs)
        )
        adam.step(torch.autograd.grad(mine_loss, mine), most)
        peer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs, most or math.inf)
        peer.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
