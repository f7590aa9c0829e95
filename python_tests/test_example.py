from pathlib import Path

import numpy as np
import torch

from sopr_fast import example
from sopr_fast.metrics import spearman


def test_example_is_small_and_whole():
    files = [p for p in Path(example.__file__).parent.iterdir() if p.is_file()]
    assert {"halfcheetah.npz", "states.npz", "returns.csv", "README.md"} <= {p.name for p in files}
    assert sum(p.stat().st_size for p in files) < 10e6
    states, returns, policies = example.states(), example.returns(), example.policies()
    assert states.shape == (65536, 17) and states.dtype == np.float32 and np.isfinite(states).all()
    assert returns.shape == (50,) and len(policies) == 50 and list(policies)[7] == "halfcheetah-007"
    assert spearman(returns, range(50)) > 0.9  # the run learns


def test_example_policies_act():
    states = torch.from_numpy(example.states()[:100])
    actions = torch.stack([policy.act(states) for policy in example.policies().values()])
    assert actions.shape == (50, 100, 6) and (actions.abs() <= 1).all()
    assert (actions.std(0) > 0).all()
