"""The example of Ray Data in the documentation: two workers act for candidates, and scores are those of one process."""

import dataclasses
import runpy
from pathlib import Path

import numpy as np
import pytest
from support.needs import needs
from support.problems import TINY

import sopr_fast
from sopr_fast import example

SCRIPT = Path(__file__).parents[1] / "docs" / "tutorials" / "ray_data.py"


@pytest.mark.slow
def test_candidates_that_two_workers_load_have_the_scores_of_one_process(tmp_path, monkeypatch):
    ray = needs("ray")
    monkeypatch.chdir(tmp_path)
    for folder in ("candidates", "tables"):
        Path(folder).mkdir()
    policies, returns, states = example.policies(), example.returns(), example.states()
    known = dict(list(policies.items())[:6])
    config = dataclasses.replace(TINY, subset_size=1024, clusters=16)
    sopr_fast.fit(known, states, returns[:6], config=config).save("model.safetensors")
    np.save("log.npy", states)
    with np.load(Path(example.__file__).parent / "halfcheetah.npz") as stacks:
        for i, name in enumerate(policies):
            np.savez(f"candidates/{name}.npz", **{key: stacks[key][i] for key in stacks.files})
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        ranking = runpy.run_path(str(SCRIPT))["rank"]("model.safetensors", "log.npy", "candidates", "tables")
    finally:
        ray.shutdown()
    alone = sopr_fast.rank("candidates", states[::4], model="model.safetensors")
    assert ranking.names == alone.names == list(policies)
    np.testing.assert_array_equal(ranking.scores, alone.scores)
