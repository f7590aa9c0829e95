"""`fit` and `rank` compute on the chosen device and agree with the CPU."""

import dataclasses

import numpy as np
import pytest
import torch
from support import problems
from support.problems import TINY, ladder

import sopr_fast
from sopr_fast.runtime import devices

CANDIDATES = ladder([0.3, 0.7, 1.2])
OPTIONS = [{}, {"encoder": "mlp"}]


def fit(options=None, **more):
    config = dataclasses.replace(TINY, steps=6, subsets=4, **options or {})
    return problems.fit(config, validation=(CANDIDATES, [0.3, 0.7, 1.2]), **more)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_cuda_fit_and_rank_as_the_cpu_does(options, cuda, tmp_path):
    on_cpu, on_cuda = fit(options), sopr_fast.options(device=cuda)(fit)(options, checkpoint=tmp_path / "checkpoint")
    assert on_cuda.device.type == "cuda" and on_cuda.subsets.rows.device.type == "cpu"
    np.testing.assert_allclose(on_cuda.history["loss"], on_cpu.history["loss"], rtol=1e-2)
    resumed = fit(options, checkpoint=tmp_path / "checkpoint")
    assert all(
        torch.equal(a.cpu(), b) for a, b in zip(on_cuda.model.parameters(), resumed.model.parameters(), strict=True)
    )
    on_cuda.save(tmp_path / "model")
    with sopr_fast.options(device="cpu"):
        expected = on_cuda.rank(CANDIDATES).subset_scores
    rankings = [on_cuda.rank(CANDIDATES)]
    with sopr_fast.options(device=cuda):
        rankings.append(sopr_fast.rank(CANDIDATES, model=tmp_path / "model"))
        rankings.append(sopr_fast.load(tmp_path / "model").rank(CANDIDATES))
    for ranking in rankings:
        assert np.linalg.norm(ranking.subset_scores - expected) <= 1e-4 * np.linalg.norm(expected)
    assert on_cuda.device.type == "cuda"


def test_copies_to_cuda_hold_the_values(cuda):
    device = devices.check_device(cuda)
    parts = [torch.full((1 << 20,), float(i)) for i in range(40)]
    sums = [devices.put(part, device).sum() for part in parts]
    assert torch.stack(sums).tolist() == [float(i << 20) for i in range(40)]


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta", None], ids=str)
def test_a_device_that_cannot_compute_fails_first(name):
    message = f"device is {name!r}, which torch cannot use here: "
    with pytest.raises(ValueError, match=message), sopr_fast.options(device=name):
        devices.check_device(name)
