import pytest
import torch
from support import reference


@pytest.mark.parametrize("sizes", [[3], [0], [1, 0, 16, 17, 0], [400, 2], [16384]])
@pytest.mark.parametrize("width", [1, 64, 67])
def test_segment_mean_matches_float64(sizes, width, ops, generator):
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()], dtype=torch.int32)
    x = torch.randn(sum(sizes), width, generator=generator)
    expected = reference.segment_mean(x.double(), offsets)
    torch.testing.assert_close(ops.segment_mean(x, offsets).double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 67])
def test_the_mean_of_many_rows_is_as_good_as_torchs(width, ops, generator):
    x = torch.rand(1_000_000 // width, width, generator=generator)
    expected = x.double().mean(0)
    actual = ops.segment_mean(x, torch.tensor([0, len(x)], dtype=torch.int32))[0]
    assert (actual - expected).abs().max() <= 2 * (x.mean(0) - expected).abs().max() + 1e-6
