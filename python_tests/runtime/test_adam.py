import math

import pytest
import torch

from sopr_fast.runtime.adam import Adam


@pytest.mark.parametrize("most", [0.0, 3.0])
@pytest.mark.parametrize(("betas", "decay"), [((0.9, 0.999), 0.0), ((0.0, 0.99), 0.0), ((0.9, 0.999), 0.01)])
def test_steps_are_those_of_torch(betas, decay, most, generator):
    mine = [torch.randn(shape, generator=generator) for shape in ((3, 5), (7,), ())]
    theirs = [parameter.double().requires_grad_() for parameter in mine]
    adam, peer = Adam(mine, 0.1, betas=betas, decay=decay), torch.optim.AdamW(theirs, 0.1, betas, weight_decay=decay)
    for step in range(1, 6):
        adam.step([step * (step * parameter - 1) for parameter in mine], most)
        for parameter in theirs:
            parameter.grad = step * (step * parameter.detach() - 1)
        torch.nn.utils.clip_grad_norm_(theirs, most or math.inf)
        peer.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
