"""Adam, compared with torch.optim, and the modules that a training must not import."""

import subprocess
import sys

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


def test_a_restored_optimizer_continues_with_equal_bits():
    whole, halves = problem(), problem()
    first = Adam(whole, 0.1)
    descend(first, whole, 4)
    descend(first, whole, 4)
    second = Adam(halves, 0.1)
    descend(second, halves, 4)
    saved = {name: value.clone() for name, value in second.tensors("adam").items()}
    third = Adam(halves, 0.1)
    third.restore({**saved, "model.weight": torch.ones(1)}, "adam")
    descend(third, halves, 4)
    assert all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True))


def test_training_does_not_import_the_compiler():
    script = """
import sys, numpy as np, sopr_fast
from sopr_fast import Config
config = Config(subset_size=32, clusters=2, subsets=2, steps=2, width=16, low_heads=2, high_heads=2, high_layers=1)
policies = {f"p{i}": (lambda states, i=i: states[:, :1] * i) for i in range(4)}
states = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
sopr_fast.fit(policies, dict(zip(policies, range(4))), states, config=config)
print(*[name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "\n"
