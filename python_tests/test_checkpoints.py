import numpy as np
import torch

from sopr_fast.runtime.checkpoints import fingerprint


def test_runs_whose_numbers_read_the_same_in_a_row_are_told_apart():
    assert fingerprint(0.9, 95) != fingerprint(0.99, 5)


def test_arrays_are_told_apart_by_shape_and_type():
    array = np.zeros((2, 3), np.float32)
    assert fingerprint(array) == fingerprint(torch.from_numpy(array)) == fingerprint(np.asfortranarray(array))
    assert len({fingerprint(x) for x in (array, array.T, array.view(np.int32), array[:, :2])}) == 4
