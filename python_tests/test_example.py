from pathlib import Path

import halfcheetah
import numpy as np
import pytest
import torch
from support.needs import needs

from sopr_fast import example
from sopr_fast.results.metrics import spearman


def test_the_embedded_example_is_small():
    files = [p for p in Path(example.__file__).parent.iterdir() if p.is_file()]
    assert {"halfcheetah.npz", "states.npz", "returns.csv", "README.md"} <= {p.name for p in files}
    assert sum(p.stat().st_size for p in files) < 1e6


@pytest.mark.parametrize("part, count", [(example, 8192), (halfcheetah, 65536)], ids=["embedded", "bench"])
def test_examples_are_whole_and_their_policies_act(part, count):
    states, returns, policies = part.states(), part.returns(), part.policies()
    assert states.shape == (count, 17) and states.dtype == np.float32 and np.isfinite(states).all()
    assert returns.shape == (50,) and len(policies) == 50 and list(policies)[7].endswith("-007")
    assert spearman(returns, range(50)) > 0.8  # the run learns
    actions = torch.stack([policy.act(torch.from_numpy(states[:100])) for policy in policies.values()])
    assert actions.shape == (50, 100, 6) and (actions.abs() <= 1).all() and (actions.std(0) > 0).all()


def test_the_policies_of_pendulum_return_what_is_said():
    gymnasium = needs("gymnasium")
    policies, log, returns = example.pendulum()
    assert log["observations"].shape == (5000, 3) and log["timeouts"].sum() == 25
    games = gymnasium.make_vec("Pendulum-v1", num_envs=50)
    for name in ("bc-1000", "cql-4000"):
        states, total = games.reset(seed=1000)[0], 0
        for _ in range(200):
            states, rewards, *_ = games.step(policies[name](states))
            total += rewards.mean()
        assert total == pytest.approx(returns[name], abs=0.1)
