"""Where `fit` and `rank` compute: on the device asked for, with the CPU's results."""

import numpy as np
import pytest
import torch
from problems import TINY, ladder, log, training_gains

import sopr_fast
from sopr_fast import Config
from sopr_fast.runtime import devices

ASKED = ladder([0.3, 0.7, 1.2])
OPTIONS = [{}, {"action_noise": 0.1, "encoder": "mlp"}, {"loss": "mse", "score": "sort"}]


def fit(options=None, **more):
    gains = training_gains()
    config = Config(**TINY.to_dict() | {"steps": 6, "subsets": 4} | (options or {}))
    validation = (ASKED, [0.3, 0.7, 1.2])
    return sopr_fast.fit(ladder(gains), gains, log(), validation=validation, config=config, progress=False, **more)


@pytest.fixture(scope="module")
def ranker():
    return fit()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_cuda_fit_and_rank_as_the_cpu_does(options, cuda, tmp_path):
    here, there = fit(options), fit(options, device=cuda, checkpoint=tmp_path / "checkpoint")
    assert there.device.type == "cuda" and there.subsets.rows.device.type == "cpu"
    np.testing.assert_allclose(there.history["loss"], here.history["loss"], rtol=1e-2)
    resumed = fit(options, checkpoint=tmp_path / "checkpoint")
    assert all(
        torch.equal(a.cpu(), b) for a, b in zip(there.model.parameters(), resumed.model.parameters(), strict=True)
    )
    there.save(tmp_path / "model")
    expected = there.rank(ASKED, progress=False, device="cpu").subset_scores
    for found in (
        there.rank(ASKED, progress=False),
        sopr_fast.rank(ASKED, model=tmp_path / "model", device=cuda, progress=False),
        sopr_fast.load(tmp_path / "model", device=cuda).rank(ASKED, progress=False),
    ):
        assert np.linalg.norm(found.subset_scores - expected) <= 1e-4 * np.linalg.norm(expected)
    assert there.device.type == "cuda"


def test_cuda_copies_hold_what_was_put(cuda):
    device = devices.check_device(cuda)
    parts = [torch.full((1 << 20,), float(i)) for i in range(40)]
    sums = [devices.put(part, device).sum() for part in parts]
    assert torch.stack(sums).tolist() == [float(i << 20) for i in range(40)]


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta", None], ids=str)
def test_a_device_that_cannot_compute_fails_first(name, ranker, tmp_path):
    ranker.save(tmp_path / "model")
    message = f"device is {name!r}, which torch cannot use here: "
    for call in (
        lambda: sopr_fast.fit(None, device=name),
        lambda: sopr_fast.load(tmp_path / "model", device=name),
        lambda: ranker.rank(None, device=name) if name else devices.check_device(name),
    ):
        with pytest.raises(ValueError, match=message):
            call()
