import pytest
import torch
from support import reference
from support.segment_attention import RNG, batch

# Known answers of Random123 for philox4x32-10: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_of_the_reference_has_the_known_answers(counter, key, result):
    words = [torch.tensor(int(word, 16)) for word in f"{key} {counter}".split()]
    assert " ".join(f"{int(word):08x}" for word in reference.philox(*words)) == result


@pytest.mark.parametrize(
    ("probability", "dropped"), [(0.25, 0.25), (0.1, 0.1), (1e-6, 0), (0.999999, 1)], ids=lambda value: f"{value:g}"
)
def test_segment_dropout_is_the_reference_mask(probability, dropped, ops):
    x, *_, offsets = batch([5, 0, 1, 30], 1, 67)
    x = x[:, 0]
    for site, rng in ((1, RNG), (3, torch.tensor([-3, 2**40 + 17]))):
        place = {"level": 1, "layer": 4, "site": site, "segment_base": 2**32 - 2}
        expected = reference.segment_dropout(x, offsets, probability=probability, rng=rng, **place)
        assert torch.equal(ops.segment_dropout(x, offsets, probability=probability, rng=rng, **place), expected)
        assert (expected == 0).float().mean().item() == pytest.approx(dropped, abs=0.05)


def test_no_dropout_without_columns_rng_or_probability(ops):
    x, *_, offsets = batch([5], 1, 8)
    x = x[:, 0]
    assert ops.segment_dropout(x[:, :0], offsets, probability=0.1, rng=RNG).shape == (5, 0)
    for probability, rng in ((0.5, None), (0.0, RNG)):
        assert torch.equal(ops.segment_dropout(x, offsets, probability=probability, rng=rng), x)
