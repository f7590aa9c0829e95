import numpy as np
import pytest
import torch

from sopr_fast.runtime.checkpoints import Checkpoint, fingerprint


def test_runs_whose_numbers_read_the_same_in_a_row_are_told_apart():
    assert fingerprint(0.9, 95) != fingerprint(0.99, 5)


def test_arrays_are_told_apart_by_shape_and_type():
    array = np.zeros((2, 3), np.float32)
    assert fingerprint(array) == fingerprint(torch.from_numpy(array)) == fingerprint(np.asfortranarray(array))
    assert len({fingerprint(x) for x in (array, array.T, array.view(np.int32), array[:, :2])}) == 4


def test_a_checkpoint_that_another_run_writes_meanwhile_is_refused(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    runs = {name: Checkpoint(path, "checkpoint", "returns") for name in ("mine", "other")}
    for name, run in runs.items():
        run.identify(name)
    runs["other"].keep({"weights": torch.ones(2)}, {"step": 7}, progress="", last=True)
    assert runs["other"].load()[1]["step"] == 7
    with pytest.raises(
        ValueError, match=r"checkpoint .*checkpoint\.safetensors is of a run with other policies, returns"
    ):
        runs["mine"].load()
